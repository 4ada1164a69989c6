"""One life-long stream to one endpoint, dialled again with back-off whenever it breaks; used from the loop only.

Each attempt has a channel of its own, so that the waits between attempts are the ones decided here and not gRPC's too.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import grpc
from moe.runtime.server_settings import client_options
from moe.wire.backoff import Backoff
from moe.wire.grpcio.outbox import Outbox
from moe.wire.settings import WireSettings

Request = TypeVar("Request")
Response = TypeVar("Response")
Received_contra = TypeVar("Received_contra", contravariant=True)

Stream: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"

_CANCEL_AGAIN_S = 0.1

logger = logging.getLogger("moe.wire")


class LinkState(Enum):
    """connecting: what is sent waits for the stream to open. waiting: for the next attempt, nothing can be sent."""

    CONNECTING = "connecting"
    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


class LinkEnd(Protocol[Received_contra]):
    """Who uses a link. Methods are called on the loop and must not block."""

    def opened(self, first: Received_contra) -> None:
        """The stream is open; its first message came."""

    def received(self, response: Received_contra) -> None:
        """Another message came."""

    def lost(self, message: str) -> None:
        """The stream broke or could not be opened; whatever was sent and not answered is lost."""


class Link(Generic[Request, Response]):
    """The stream. start: opens the call on a channel. hello: the first message to send, where there is one."""

    def __init__(
        self,
        endpoint: str,
        start: Callable[[grpc.aio.Channel], Stream],
        end: LinkEnd[Response],
        settings: WireSettings,
        hello: Request | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.state = LinkState.CONNECTING
        self._start = start
        self._end = end
        self._settings = settings
        self._hello = hello
        self._backoff = Backoff()
        self._outbox: Outbox[Request] = Outbox(settings.max_outbox_bytes)
        self._opened_at: float | None = None
        self._closing = False
        self._called = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"link to {endpoint}")

    def send(self, message: Request, size: int) -> bool:
        """Queues a message; False when the peer has stopped reading. Only while connecting or open."""
        return self._outbox.put(message, size)

    def redial(self) -> None:
        """Cuts a wait between two attempts short: the peer is said to be back. What is sent now waits for it."""
        if self.state is LinkState.WAITING:
            self.state = LinkState.CONNECTING
            self._called.set()

    async def close(self) -> None:
        """Ends the stream for good; the end is not told.

        Cancelling once is not enough: a call that grpc.aio is just starting swallows the cancellation.
        """
        self._closing = True
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CANCEL_AGAIN_S)
        self.state = LinkState.CLOSED

    async def _run(self) -> None:
        while True:
            self._opened_at = None
            reason = await self._guarded_attempt()
            lasted = time.monotonic() - self._opened_at if self._opened_at else 0.0
            if self._closing:
                return
            level = logging.WARNING if self._opened_at else logging.DEBUG
            logger.log(level, "stream to %s: %s", self.endpoint, reason)
            self.state = LinkState.WAITING
            self._outbox.clear()
            self._end.lost(reason)
            await self._pause(self._backoff.next_wait_s(lasted))
            self.state = LinkState.CONNECTING

    async def _pause(self, longest_s: float) -> None:
        self._called.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._called.wait()

    async def _guarded_attempt(self) -> str:
        """An attempt whose failure, of whatever kind, is not the end of the link."""
        try:
            return await self._attempt()
        except asyncio.CancelledError:
            if self._task.cancelling():
                raise
            return "the call was cancelled inside gRPC"
        except Exception as error:
            logger.exception("stream to %s failed unexpectedly", self.endpoint)
            return f"failed unexpectedly: {error!r}"

    async def _attempt(self) -> str:
        """Dials, talks until the stream ends, and returns why it did."""
        async with grpc.aio.insecure_channel(
            self.endpoint,
            client_options(
                self._settings.max_message_bytes, self._settings.keepalive_s, self._settings.keepalive_timeout_s
            ),
        ) as channel:
            call = self._start(channel)
            try:
                return await self._talk(call)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
            except TimeoutError:
                return f"no answer within {self._settings.open_timeout_s:g} s of dialling"
            except asyncio.InvalidStateError:
                return await _ending(call)
            finally:
                call.cancel()

    async def _talk(self, call: Stream) -> str:
        async with asyncio.timeout(self._settings.open_timeout_s):
            if self._hello is not None:
                await call.write(self._hello)
            first: Any = await call.read()
        if first is grpc.aio.EOF:
            return await _ending(call)
        self.state = LinkState.OPEN
        self._opened_at = time.monotonic()
        logger.info("stream to %s is open", self.endpoint)
        self._end.opened(first)
        writer = asyncio.create_task(self._outbox.pump(call.write))
        try:
            response: Any
            while (response := await call.read()) is not grpc.aio.EOF:
                self._end.received(response)
            return await _ending(call)
        finally:
            call.cancel()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)


async def _ending(call: Stream) -> str:
    """Why a stream is over that ended without an exception."""
    code, details = await call.code(), await call.details()
    return f"ended by the peer ({code.name}{': ' + details if details else ''})"
