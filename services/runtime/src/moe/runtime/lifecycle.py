"""A process's way from starting to drained, and the calls that are in flight meanwhile.

starting ──set_ready(True)──► ready ──drain()──► draining ──► ended
    ▲──────set_ready(False)─────┘
"""

import asyncio
import threading
from collections.abc import Callable

Listener = Callable[[], None]

_LAST_WORD_S = 0.1
"""For a watch to be woken and to write: turns of the loop that it runs on, so enough on any machine."""


class Lifecycle:
    """The handle by which the parts of a service say how it is. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = False
        self._draining = False
        self._stuck = False
        self._failure: BaseException | None = None
        self._listeners: list[Listener] = []

    @property
    def ready(self) -> bool:
        """Whether health says SERVING: ready, and neither stuck nor draining."""
        return self._ready and not self._stuck and not self._draining

    @property
    def stuck(self) -> bool:
        """Whether the serving loop hangs, so that only a new process helps."""
        return self._stuck

    @property
    def draining(self) -> bool:
        """Whether the process is on its way out and takes nothing new."""
        return self._draining

    @property
    def failure(self) -> BaseException | None:
        """What made it end, when it did not end by wish."""
        return self._failure

    def set_ready(self, ready: bool) -> None:
        """Says whether the service can do its work now; may change to and fro."""
        self._change(lambda: setattr(self, "_ready", ready))

    def set_stuck(self, stuck: bool) -> None:
        """Says whether the serving loop hangs; may change to and fro."""
        self._change(lambda: setattr(self, "_stuck", stuck))

    def drain(self) -> None:
        """Begins the way out. Doing it twice is no harm."""
        self._change(lambda: setattr(self, "_draining", True))

    def fail(self, error: BaseException) -> None:
        """Ends the process because it can't go on; the first error counts. Exit code 1, or 2 for a StartupError."""

        def change() -> None:
            self._failure = self._failure or error
            self._draining = True

        self._change(change)

    def subscribe(self, listener: Listener) -> None:
        """Calls `listener` after every change, in the thread that made it, and once now."""
        with self._lock:
            self._listeners.append(listener)
        listener()

    def _change(self, change: Callable[[], None]) -> None:
        with self._lock:
            change()
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()


class InFlight:
    """The calls that a server is answering. Auxiliary ones (health, reflection) don't keep it from ending.

    Used from the server's loop only.
    """

    def __init__(self) -> None:
        self._calls: dict[asyncio.Task[object], str] = {}
        self._auxiliary: set[asyncio.Task[object]] = set()
        self._hung_up: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self, task: asyncio.Task[object], method: str, *, auxiliary: bool) -> None:
        """A call begins. task: the one it is answered in; method: its path."""
        if auxiliary:
            self._auxiliary.add(task)
        else:
            self._calls[task] = method
            self._idle.clear()

    def leave(self, task: asyncio.Task[object]) -> None:
        """A call ended, in whichever way."""
        self._auxiliary.discard(task)
        if self._calls.pop(task, None) is not None and not self._calls:
            self._idle.set()

    def methods(self) -> list[str]:
        """The paths of the calls in flight, auxiliary ones left out."""
        return sorted(self._calls.values())

    async def wait_idle(self) -> None:
        """Returns when no call is in flight."""
        await self._idle.wait()

    async def hang_up_auxiliary(self) -> None:
        """Ends health watches and reflection streams, which never end by themselves; first lets them say what they
        have just been told, such as that the process is not serving any more."""
        if self._auxiliary:
            await asyncio.sleep(_LAST_WORD_S)
        self._hung_up |= self._auxiliary
        for task in self._auxiliary:
            task.cancel()

    def hung_up(self, task: asyncio.Task[object]) -> bool:
        """Whether the call was ended by `hang_up_auxiliary`, so that its client still has to be told."""
        return task in self._hung_up
