"""One accepted long-lived stream: reads as its peer sends, writes from a bounded outbox, ends when told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from moe.runtime.errors import MoeError, Overloaded
from moe.wire.grpcio.outbox import Done, Outbox

Request = TypeVar("Request")
Response = TypeVar("Response", bound=Message)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ServerStream(Generic[Request, Response]):
    """A stream in its handler's hands; used from the loop only. max_bytes: what may wait to be written."""

    def __init__(self, context: Context, max_bytes: int) -> None:
        self._context = context
        self._max_bytes = max_bytes
        self._outbox: Outbox[Response] = Outbox(max_bytes)
        self._end = asyncio.Event()
        self._error: MoeError | None = None

    def send(self, response: Response, done: Done | None = None) -> bool:
        """Queues a message; False when the peer does not read what it is sent."""
        return self._outbox.put(response, response.ByteSize(), done)

    def end(self, error: MoeError | None = None) -> None:
        """Ends the stream, once what is queued is written, or at once with an error."""
        self._error = self._error or error
        self._end.set()

    async def until_ended(self) -> None:
        """Returns when the stream was told to end: what to await where a peer's last word ends nothing."""
        await self._end.wait()

    def fail_unread(self, peer: str) -> None:
        """Ends the stream because its peer does not read."""
        self.end(Overloaded(f"{peer} does not read its stream: {self._max_bytes} bytes wait; dial again and read"))

    async def run(
        self,
        requests: AsyncIterator[Request],
        handle: Callable[[Request], None],
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        """Serves the stream until it is ended, or its peer is gone.

        handle: called with every message; what it raises ends the stream. settled: awaited when the peer has said its
        last word, for the answers that it still expects.
        """
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._outbox.pump(self._context.write)),
            asyncio.create_task(self._read(requests, handle, settled)),
            asyncio.create_task(self._end.wait()),
        ]
        try:
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                task.result()
            if self._error:
                raise self._error
            await self._flush(tasks[0])
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._outbox.clear()

    async def _read(
        self,
        requests: AsyncIterator[Request],
        handle: Callable[[Request], None],
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        """A peer that does not read is not read either: requests wait at it while half of the outbox is full."""
        async for request in requests:
            handle(request)
            await self._outbox.wait_below(self._max_bytes // 2)
        await settled()

    async def _flush(self, writer: "asyncio.Task[Any]") -> None:
        """Until all is written, or the writer fails as the peer is gone."""
        flushed = asyncio.create_task(self._outbox.wait_below(0))
        await asyncio.wait({flushed, writer}, return_when=asyncio.FIRST_COMPLETED)
        flushed.cancel()
        await asyncio.gather(flushed, return_exceptions=True)


async def first_message(requests: AsyncIterator[Request]) -> Request | None:
    """The first message of a stream; None when the peer ends it without one."""
    async for request in requests:
        return request
    return None
