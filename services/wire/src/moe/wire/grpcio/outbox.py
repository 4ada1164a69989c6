"""What waits to be written on one stream, bounded in bytes; used from the loop only.

gRPC's write returns when the transport has taken the message, which a peer that does not read holds up. The bound here
is what keeps such a peer from taking this process's memory.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Message = TypeVar("Message")
Done = Callable[[bool], None]

_BYTES_PER_MESSAGE = 128
"""Bookkeeping of a message, so that empty ones are not free."""


@dataclass
class _Entry(Generic[Message]):
    message: Message
    size: int
    done: Done | None


class Outbox(Generic[Message]):
    """A queue with one writer. A message larger than the bound is taken when nothing else waits."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[_Entry[Message]] = deque()
        self._changed = asyncio.Event()
        self._shrunk = asyncio.Event()
        self.nbytes = 0

    def put(self, message: Message, size: int, done: Done | None = None) -> bool:
        """Queues a message; False, and nothing happens, when the bound is reached.

        done is called once: True when the message was written, False when it never will be.
        """
        size += _BYTES_PER_MESSAGE
        if self.nbytes and self.nbytes + size > self._max_bytes:
            return False
        self._waiting.append(_Entry(message, size, done))
        self.nbytes += size
        self._changed.set()
        return True

    async def pump(self, write: Callable[[Message], Awaitable[object]]) -> None:
        """Writes what comes, for ever; raises what `write` raises."""
        while True:
            while self._waiting:
                entry = self._waiting[0]
                await write(entry.message)
                self._pop(written=True)
            self._changed.clear()
            await self._changed.wait()

    async def wait_below(self, nbytes: int) -> None:
        """Returns when at most so much waits; 0 means everything is written."""
        while self.nbytes > nbytes:
            self._shrunk.clear()
            await self._shrunk.wait()

    def clear(self) -> None:
        """Drops all that waits."""
        while self._waiting:
            self._pop(written=False)

    def _pop(self, *, written: bool) -> None:
        """A clear() during a write has emptied the queue by then: the message then counts as not written."""
        if not self._waiting:
            return
        entry = self._waiting.popleft()
        self.nbytes -= entry.size
        self._shrunk.set()
        if entry.done:
            entry.done(written)
