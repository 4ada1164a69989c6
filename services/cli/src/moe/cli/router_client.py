"""Talks to a router over moe.inference.v1, and turns statuses into messages for people."""

from collections.abc import Callable, Iterator

import grpc
from moe.api.inference.v1 import inference_pb2 as pb
from moe.api.inference.v1 import inference_pb2_grpc
from moe.cli.errors import CliError, UsageError
from moe.cli.supervise.contact import channel_options, dialable

_USER_S_FAULT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)
_SHORT_S = 30.0


class RouterClient:
    """A connection to one router. Every call raises CliError, or UsageError when the request is to blame.

    trouble: what is wrong with the way to it; empty when nothing is known.
    """

    def __init__(self, address: str, trouble: Callable[[], str] = lambda: "") -> None:
        self.address = address
        self._trouble = trouble
        self._channel = grpc.insecure_channel(dialable(address), options=channel_options())
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)

    def __enter__(self) -> "RouterClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def generate(self, request: pb.GenerateRequest, timeout_s: float | None = None) -> Iterator[pb.GenerateResponse]:
        """The stream of a generation. Leaving it early (closing the iterator) cancels the work behind it."""
        call = self._stub.Generate(request, timeout=timeout_s)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._problem(error) from error
        finally:
            call.cancel()

    def score(self, request: pb.ScoreRequest, timeout_s: float | None = None) -> pb.ScoreResponse:
        """Log-probabilities of a text."""
        try:
            answer: pb.ScoreResponse = self._stub.Score(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._problem(error) from error
        return answer

    def tokenize(self, request: pb.TokenizeRequest, timeout_s: float = _SHORT_S) -> pb.TokenizeResponse:
        """Text to ids, or ids to text."""
        try:
            answer: pb.TokenizeResponse = self._stub.Tokenize(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._problem(error) from error
        return answer

    def model(self, timeout_s: float = _SHORT_S) -> pb.GetModelResponse:
        """What is served and its limits."""
        try:
            answer: pb.GetModelResponse = self._stub.GetModel(pb.GetModelRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._problem(error) from error
        return answer

    def _problem(self, error: grpc.RpcError) -> CliError:
        code, details = error.code(), error.details() or ""
        if code in _USER_S_FAULT:
            return UsageError(details)
        if code is grpc.StatusCode.UNAVAILABLE and (trouble := self._trouble()):
            return CliError(trouble)
        if code is grpc.StatusCode.UNAVAILABLE and "connect" in details.lower():
            return CliError(f"nobody answers at {self.address}; see what is up with `moe status`")
        return CliError(f"{details} ({code.name})")
