"""Whether a serving loop still turns: the sign of life behind the liveness that a kubelet asks for.

A loop that waits for others or for work goes on beating. One that computes for long doesn't, but uses processor time;
one that hangs, in a lock or a call that never returns, does neither.
"""

import threading
import time
import traceback
from collections.abc import Callable
from sys import _current_frames

COMPUTING_S = 1.0
"""Processor time since the last turn from which a silent loop counts as computing."""

LONGEST_TURNS = 20
"""Times `hang_after_s` after which even a loop that computes is taken to be caught: no turn takes that long."""


class Progress:
    """Of one loop in one thread: `begin` and `beat` are called by it, `stuck` by whoever watches.

    hang_after_s: silence, without processor time, after which it is stuck. clock: seconds; processor: seconds that the
    thread of a clock id has computed.
    """

    def __init__(
        self,
        hang_after_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[int], float] = time.clock_gettime,
    ) -> None:
        self._hang_after_s = hang_after_s
        self._clock = clock
        self._processor = processor
        self._thread: int | None = None
        self._clock_id = 0
        self._beats = 0
        self._seen = -1
        self._seen_at = 0.0
        self._seen_processor = 0.0

    def begin(self) -> None:
        """The loop begins in the calling thread."""
        self._clock_id = time.pthread_getcpuclockid(threading.get_ident())
        self._thread = threading.get_ident()

    def beat(self) -> None:
        """The loop has come round."""
        self._beats += 1

    def end(self) -> None:
        """The loop has ended by itself: nothing is to be watched any more."""
        self._thread = None

    def stuck(self) -> str:
        """Why the loop is taken to hang; empty while it turns, computes, or has not begun. Asked every few seconds."""
        if self._thread is None:
            return ""
        now, used = self._clock(), self._used()
        if self._beats != self._seen:
            self._seen, self._seen_at, self._seen_processor = self._beats, now, used
        silent, computed = now - self._seen_at, used - self._seen_processor
        if silent < self._hang_after_s or (computed >= COMPUTING_S and silent < LONGEST_TURNS * self._hang_after_s):
            return ""
        return f"the serving loop has not come round for {silent:.0f} s, computing for {computed:.1f} s of them"

    def where(self) -> str:
        """The stack of the loop's thread, for a log."""
        frame = _current_frames().get(self._thread or 0)
        return "".join(traceback.format_stack(frame)) if frame else "(the thread is gone)"

    def _used(self) -> float:
        try:
            return self._processor(self._clock_id)
        except OSError:
            return self._seen_processor  # the thread is gone, which is no progress either
