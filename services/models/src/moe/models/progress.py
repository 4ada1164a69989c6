"""How long work on models reports that it moves: bytes done of bytes in all, and what is at hand.

A callable is all it takes, so that a progress bar, a log line or a test's list can stand behind it.
"""

from typing import Protocol


class Progress(Protocol):
    """Told now and then how far the work is."""

    def __call__(self, done: int, total: int, label: str) -> None:
        """done and total in bytes, 0 <= done <= total, done never falls; label says what is at hand."""


def silent(done: int, total: int, label: str) -> None:
    """A `Progress` that tells nobody."""


class Meter:
    """Counts bytes towards a known total and passes each addition on to a `Progress`."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, count: int, label: str) -> None:
        """Reports `count` more bytes."""
        self._done = min(self._total, self._done + count)
        self._progress(self._done, self._total, label)

    def finish(self, label: str) -> None:
        """Reports that everything is done, whatever the estimate of the total was."""
        self._done = self._total
        self._progress(self._done, self._total, label)
