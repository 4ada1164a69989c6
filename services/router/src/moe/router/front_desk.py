"""What clients call: moe.inference.v1 over the engine. Only translates; what can be wrong is found by `requests`."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc
from moe.api.inference.v1 import inference_pb2, inference_pb2_grpc
from moe.models.text import Tokenizer
from moe.router.domain import Ending, Piece, Scored
from moe.router.engine import Engine
from moe.router.mailbox import Mailbox
from moe.router.messages import chunk_message, final_message, score_message
from moe.router.requests import RequestReader
from moe.runtime.errors import DeadlineExceeded, Unavailable

_Result = TypeVar("_Result")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_INLINE_BYTES = 2048
"""Prompts up to this size are tokenised on the loop, in less time than a change of threads takes."""

_CAPACITY = 64
"""Pieces that may wait for a client before its generation pauses."""


@dataclass(frozen=True)
class DeskTools:
    """What the desk works with, once the model is loaded. model: the answer to GetModel."""

    engine: Engine
    reader: RequestReader
    tokenizer: Tokenizer | None
    model: inference_pb2.GetModelResponse


class FrontDesk(inference_pb2_grpc.InferenceServiceServicer):
    """Serves moe.inference.v1.InferenceService, from `open` on.

    name: of the router. stall_s: how long a client may leave its stream unread. executor: for long prompts.
    """

    def __init__(self, name: str, *, stall_s: float, executor: Executor) -> None:
        self._name = name
        self._stall_s = stall_s
        self._executor = executor
        self._tools: DeskTools | None = None

    def open(self, tools: DeskTools) -> None:
        """The model is loaded."""
        self._tools = tools

    async def Generate(  # type: ignore[override]  # noqa: N802 - gRPC's name; writes instead of yielding
        self, request: inference_pb2.GenerateRequest, context: _Context
    ) -> None:
        """Streams an answer. Whatever ends the call ends the request in the engine.

        It writes by itself, which grpc.aio allows as well: a write can be given a time-out, a `yield` can't.
        """
        tools = self._opened()
        generation = await self._apart(request.prompt, lambda: tools.reader.generation(request))
        mailbox = Mailbox(_CAPACITY, tools.engine.wake)
        key = tools.engine.submit(generation, mailbox)
        try:
            while isinstance(item := await mailbox.take(), Piece):
                await self._write(context, chunk_message(item))
            assert isinstance(item, Ending), f"a generation ends with an Ending, got {type(item).__name__}"
            await self._write(context, final_message(item))
        finally:
            tools.engine.cancel(key)

    async def Score(  # noqa: N802 - gRPC's name
        self, request: inference_pb2.ScoreRequest, context: _Context
    ) -> inference_pb2.ScoreResponse:
        """Log-probabilities of a text."""
        tools = self._opened()
        scoring = await self._apart(request.prompt, lambda: tools.reader.scoring(request))
        mailbox = Mailbox(_CAPACITY, tools.engine.wake)
        key = tools.engine.submit(scoring, mailbox)
        try:
            item = await mailbox.take()
        finally:
            tools.engine.cancel(key)
        assert isinstance(item, Scored), f"a scoring ends with a Scored, got {type(item).__name__}"
        return score_message(item, scoring.prompt)

    async def Tokenize(  # noqa: N802 - gRPC's name
        self, request: inference_pb2.TokenizeRequest, context: _Context
    ) -> inference_pb2.TokenizeResponse:
        """Text or chat to ids, ids to text."""
        tools = self._opened()
        tools.reader.check_model(request.model)
        return await self._apart(request.prompt, lambda: _tokenized(tools, request.prompt))

    async def GetModel(  # noqa: N802 - gRPC's name
        self, request: inference_pb2.GetModelRequest, context: _Context
    ) -> inference_pb2.GetModelResponse:
        """What is served."""
        tools = self._opened()
        tools.reader.check_model(request.model)
        return tools.model

    def _opened(self) -> DeskTools:
        if self._tools is None:
            raise Unavailable(f"{self._name} is loading its model; wait until its health says SERVING")
        return self._tools

    async def _apart(self, prompt: inference_pb2.Prompt, work: Callable[[], _Result]) -> _Result:
        """Does the work here when the prompt is short, else in a thread, so that the loop goes on for others."""
        if prompt.ByteSize() <= _INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _write(self, context: _Context, message: inference_pb2.GenerateResponse) -> None:
        """Writes, waiting for a client that does not read no longer than it may take. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(self._stall_s):
                await context.write(message)
        except TimeoutError as error:
            limit = f"the stream was not read for {self._stall_s:g} s (--stall-timeout-s)"
            raise DeadlineExceeded(f"generation was ended because {limit}") from error


def _tokenized(tools: DeskTools, prompt: inference_pb2.Prompt) -> inference_pb2.TokenizeResponse:
    ids = tools.reader.prompt(prompt)
    text = tools.tokenizer.decode(ids) if tools.tokenizer else ""
    return inference_pb2.TokenizeResponse(token_ids=ids, text=text)
