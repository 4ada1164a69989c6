"""An outlet over asyncio: the engine's thread puts, one coroutine takes, and what waits in between is bounded."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from moe.router.domain import Piece
from moe.router.outlet import Item
from moe.runtime.errors import MoeError


class Mailbox:
    """Implements moe.router.outlet.Outlet. Made and read on the loop.

    capacity: pieces that may wait before generation pauses. on_room: called, on the loop, when a reader has made room
    in a full box.
    """

    def __init__(self, capacity: int, on_room: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._capacity = capacity
        self._on_room = on_room
        self._items: deque[Item] = deque()
        self._error: MoeError | None = None
        self._news = asyncio.Event()
        self._called = False

    @property
    def full(self) -> bool:
        """Whether generation should pause."""
        return len(self._items) >= self._capacity

    def put(self, item: Item) -> None:
        """From the engine's thread."""
        self._items.append(item)
        self._call()

    def fail(self, error: MoeError) -> None:
        """From the engine's thread. What waits can still be taken before the error."""
        self._error = error
        self._call()

    async def take(self) -> Item:
        """The next item, waiting pieces joined into one. Raises the error that the answer ended with."""
        while True:
            was_full = self.full
            item = self._next()
            if item is not None:
                if was_full:
                    self._on_room()
                return item
            if self._error is not None:
                raise self._error
            await self._news.wait()
            self._news.clear()
            self._called = False

    def _next(self) -> Item | None:
        if not self._items:
            return None
        first = self._items.popleft()
        if not isinstance(first, Piece):
            return first
        pieces = [first]
        while self._items and isinstance(self._items[0], Piece):
            piece = self._items.popleft()
            assert isinstance(piece, Piece)
            pieces.append(piece)
        return first if len(pieces) == 1 else join(pieces)

    def _call(self) -> None:
        """Wakes the reader; once for however many items until it looks. After the loop's end nobody reads."""
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._news.set)


def join(pieces: list[Piece]) -> Piece:
    """Consecutive pieces as one."""
    text = "".join(piece.text for piece in pieces)
    return Piece(text, tuple(score for piece in pieces for score in piece.tokens))
