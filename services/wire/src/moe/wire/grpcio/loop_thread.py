"""An asyncio loop in a thread of its own, for callers that have none: grpc.aio lives on one loop."""

import asyncio
import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")

_LAST_WORDS_S = 2.0
"""For cancelled tasks to end; a call that grpc.aio is just starting swallows its cancellation."""


class LoopThread:
    """A running uvloop loop. close() cancels what still runs on it and joins the thread."""

    def __init__(self, name: str = "moe-wire") -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = 30.0) -> Result:
        """Runs a coroutine on the loop and waits for it, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        """Ends the loop. Doing it twice is no harm."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_WORDS_S))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


@functools.cache
def shared_loop() -> LoopThread:
    """One loop for all who bring none, up to the process's end.

    grpc.aio has one poller for the whole process: it goes on handing events to loops that are closed meanwhile
    (`RuntimeError: Event loop is closed` in its callbacks), so loops should not come and go.
    """
    shared = LoopThread()
    atexit.register(shared.close)
    return shared


os.register_at_fork(after_in_child=shared_loop.cache_clear)


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Calls a function soon on a loop, from any thread. A loop that has ended has nobody left who would care."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
