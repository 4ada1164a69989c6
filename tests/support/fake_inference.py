"""A router's front door that answers as it is told, for tests of clients. Real gRPC, no model."""

# ruff: noqa: N802 - gRPC's names
import contextlib
from concurrent.futures import ThreadPoolExecutor

import grpc
from moe.api.inference.v1 import inference_pb2 as pb
from moe.api.inference.v1 import inference_pb2_grpc


class FakeInference(inference_pb2_grpc.InferenceServiceServicer):
    """pieces: chunks of the answer; final: None for none; refuse: (code, details) for all; requests: what came in."""

    def __init__(self, pieces=("Par", "is."), refuse=None, final=None):
        self.pieces = pieces
        self.refuse = refuse
        self.final = final or pb.GenerateFinal(
            finish_reason=pb.FINISH_REASON_STOP,
            usage=pb.Usage(prompt_tokens=5, generated_tokens=len(pieces)),
            timings=pb.Timings(queued_s=0.1, first_token_s=0.5, total_s=1.0),
            experts=[pb.ExpertShare(expert=0, slots=30, share=0.75), pb.ExpertShare(expert=1, slots=10, share=0.25)],
            seed=7,
        )
        self.requests = []

    def Generate(self, request, context):
        self._note(request, context)
        for index, piece in enumerate(self.pieces):
            yield pb.GenerateResponse(chunk=pb.GenerateChunk(text=piece, tokens=[pb.GeneratedToken(id=100 + index)]))
        if self.final is not None:
            yield pb.GenerateResponse(final=self.final)

    def Score(self, request, context):
        self._note(request, context)
        tokens = [pb.GeneratedToken(id=2, logprob=-1.0), pb.GeneratedToken(id=3, logprob=-3.0)]
        return pb.ScoreResponse(tokens=tokens, token_ids=[1, 2, 3], total_logprob=-4.0)

    def Tokenize(self, request, context):
        self._note(request, context)
        return pb.TokenizeResponse(token_ids=[1, 2, 3], text="abc")

    def GetModel(self, request, context):
        self._note(request, context)
        return pb.GetModelResponse(name="fake")

    def _note(self, request, context):
        self.requests.append(request)
        if self.refuse:
            context.abort(*self.refuse)


@contextlib.contextmanager
def serving(servicer):
    """The address of a server with that front door."""
    server = grpc.server(ThreadPoolExecutor(4))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
