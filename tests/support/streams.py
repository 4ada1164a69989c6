"""Requests to a running router, several at once, as clients make them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
from moe.api.inference.v1 import inference_pb2, inference_pb2_grpc
from moe.cli.supervise.contact import channel_options


def request(tokens: Sequence[int], max_tokens: int = 48) -> inference_pb2.GenerateRequest:
    """A greedy request of fixed length."""
    return inference_pb2.GenerateRequest(
        prompt=inference_pb2.Prompt(tokens=inference_pb2.TokenIds(ids=tokens)),
        sampling=inference_pb2.Sampling(temperature=0),
        max_tokens=max_tokens,
        ignore_eos=True,
    )


@dataclass
class Answer:
    """What a client got. error: the status it ended with, if not OK."""

    tokens: list[int] = field(default_factory=list)
    error: grpc.RpcError | None = None
    final: inference_pb2.GenerateFinal | None = None


class Clients:
    """Sends requests at once. `progress` counts tokens that arrived, over all of them."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.channel = grpc.insecure_channel(target, options=channel_options())
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.progress = 0
        self._moved = threading.Condition()

    def ask(self, each: inference_pb2.GenerateRequest) -> Answer:
        """One request to its end."""
        answer = Answer()
        try:
            for message in self.stub.Generate(each, timeout=240):
                answer.tokens += [token.id for token in message.chunk.tokens]
                self._advance(len(message.chunk.tokens))
                if message.HasField("final"):
                    answer.final = message.final
        except grpc.RpcError as error:
            answer.error = error
        return answer

    def score(self, tokens: Sequence[int]) -> list[float]:
        """ln P of every token but the first."""
        prompt = inference_pb2.Prompt(tokens=inference_pb2.TokenIds(ids=tokens))
        answer = self.stub.Score(inference_pb2.ScoreRequest(prompt=prompt), timeout=240)
        return [token.logprob for token in answer.tokens]

    def ask_all(
        self,
        requests: Sequence[inference_pb2.GenerateRequest],
        meanwhile: Callable[[], None] | None = None,
        after: int = 1,
    ) -> list[Answer]:
        """All at once; `meanwhile` runs when `after` tokens have arrived, and ends before the last of them has."""
        self.progress = 0
        with ThreadPoolExecutor(len(requests)) as pool:
            asked = [pool.submit(self.ask, each) for each in requests]
            if meanwhile:
                with self._moved:
                    assert self._moved.wait_for(lambda: self.progress >= after, 240), "no tokens came"
                meanwhile()
                assert not all(each.done() for each in asked), "the answers ended first: ask for longer ones"
            return [each.result() for each in asked]

    def close(self) -> None:
        """Closes the connection."""
        self.channel.close()

    def _advance(self, tokens: int) -> None:
        with self._moved:
            self.progress += tokens
            self._moved.notify_all()
