"""The one place that turns exceptions into gRPC statuses, and that knows which calls are in flight."""

import asyncio
import bisect
import inspect
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from moe.runtime.errors import MoeError, StartupError, Unavailable
from moe.runtime.lifecycle import InFlight, Lifecycle

_AUXILIARY = ("/grpc.health.", "/grpc.reflection.")
_WHILE_DRAINING = (*_AUXILIARY, "/moe.control.")
_LONGEST_MESSAGE = 4096
"""Bytes of a status message as it travels, percent-encoded in a header; peers bound all headers at 8 KiB."""

_CUT = "…"

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"

logger = logging.getLogger("moe.server")


class Interceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler, unary or streaming on either side.

    A MoeError becomes its status; a call that arrives while draining is UNAVAILABLE; anything else is INTERNAL and
    logged with its trace. name: the process's, named in those messages.
    """

    def __init__(self, name: str, lifecycle: Lifecycle, in_flight: InFlight) -> None:
        self._name = name
        self._lifecycle = lifecycle
        self._in_flight = in_flight

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "Handler | None":
        """The handler, wrapped; None (an unknown method, UNIMPLEMENTED) stays None."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        return self._wrapped(handler, str(handler_call_details.method))

    def _wrapped(self, handler: Handler, method: str) -> Handler:
        inner: Any = handler
        serializer = inner.response_serializer
        if inner.stream_stream:
            streaming = self._streaming(inner.stream_stream, method)
            return grpc.stream_stream_rpc_method_handler(streaming, inner.request_deserializer, serializer)
        if inner.stream_unary:
            unary = self._unary(inner.stream_unary, method)
            return grpc.stream_unary_rpc_method_handler(unary, inner.request_deserializer, serializer)
        tolerant = _tolerant(inner.request_deserializer)
        if inner.unary_stream:
            streaming = self._streaming(inner.unary_stream, method)
            return grpc.unary_stream_rpc_method_handler(streaming, tolerant, serializer)
        return grpc.unary_unary_rpc_method_handler(self._unary(inner.unary_unary, method), tolerant, serializer)

    def _unary(self, behaviour: Callable[..., Any], method: str) -> Any:
        """For one response. behaviour(request or iterator, context) is a coroutine function."""

        async def call(request: Any, context: Context) -> Any:
            work = _refuse(request) if isinstance(request, _Malformed) else behaviour(request, context)
            return await self._guarded(work, method, context)

        return call

    def _streaming(self, behaviour: Callable[..., Any], method: str) -> Any:
        """For a stream of responses. behaviour is an async generator function, or a coroutine that writes itself."""

        async def call(request: Any, context: Context) -> None:
            produced = _refuse(request) if isinstance(request, _Malformed) else behaviour(request, context)
            work = produced if inspect.isawaitable(produced) else pump(produced, context)
            await self._guarded(work, method, context)

        return call

    async def _guarded(self, work: Awaitable[Any], method: str, context: Context) -> Any:
        task = asyncio.current_task()
        assert task is not None, "a gRPC call is always answered in a task"
        self._in_flight.enter(task, method, auxiliary=method.startswith(_AUXILIARY))
        try:
            if self._lifecycle.draining and not method.startswith(_WHILE_DRAINING):
                _discard(work)
                raise Unavailable(f"{self._name} is draining and takes no new calls")
            return await work
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            if not self._in_flight.hung_up(task):
                raise
            await self._say_goodbye(task, context)
        except MoeError as error:
            await self._abort(error, method, context)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, printable(f"malformed message: {error}"))
        except Exception as error:
            logger.exception("%s failed unexpectedly", method)
            message = f"{self._name}: internal error in {method} ({type(error).__name__}); its log has the trace"
            await context.abort(grpc.StatusCode.INTERNAL, message)
        finally:
            self._in_flight.leave(task)

    async def _say_goodbye(self, task: asyncio.Task[Any], context: Context) -> NoReturn:
        """Ends a call that the server cancels. grpcio sends no status for a cancelled task, and then waits for it."""
        task.uncancel()
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self._name} has ended")

    async def _abort(self, error: MoeError, method: str, context: Context) -> NoReturn:
        if isinstance(error, StartupError) or error.code is grpc.StatusCode.INTERNAL:
            logger.error("%s failed", method, exc_info=error)
        elif error.details:
            logger.info("%s: %s %s", method, error.message, error.details)
        await context.abort(error.code, printable(error.message), error.trailing_metadata())


@dataclass(frozen=True)
class _Malformed:
    """Stands for a single request that is no message of its type; a stream raises where it is read."""

    error: DecodeError


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """grpcio answers UNKNOWN and logs a trace when a single request can't be parsed; this lets the handler see it."""

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(error)

    return parse


async def _refuse(malformed: _Malformed) -> NoReturn:
    raise malformed.error


async def pump(responses: AsyncIterator[Any], context: Context) -> None:
    """Writes what an async generator yields; closes it whatever happens, so that its `finally` runs at once."""
    try:
        async for response in responses:
            await context.write(response)
    finally:
        if inspect.isasyncgen(responses):
            await responses.aclose()


def _discard(work: Awaitable[Any]) -> None:
    """Closes a coroutine that will not be awaited, which Python would warn about."""
    if inspect.iscoroutine(work):
        work.close()


def printable(message: str) -> str:
    """The message as a status can carry it: bounded, and without lone surrogates, which UTF-8 does not have."""
    text = message.encode("utf-8", "backslashreplace").decode("utf-8")
    ends = list(itertools.accumulate(map(_travelling_bytes, text[: _LONGEST_MESSAGE + 1])))
    if not ends or ends[-1] <= _LONGEST_MESSAGE:
        return text
    kept = bisect.bisect_right(ends, _LONGEST_MESSAGE - _travelling_bytes(_CUT))
    return text[:kept] + _CUT


def _travelling_bytes(character: str) -> int:
    """Of a character in grpc-message: printable ASCII but % as it is, any other byte as %XX (gRPC over HTTP/2)."""
    return 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode("utf-8"))
