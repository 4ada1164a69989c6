"""The expert's queue as two threads use it: the one that accepts dispatches and the one that computes."""

import threading
import time
from collections.abc import Callable, Sequence

from moe.wire.expert_queue import ExpertQueue
from moe.wire.port import Batch, ExpertLimits, QueueStats, WorkItem


class ExpertInbox:
    """on_expired: called, from either thread, with items whose deadline passed before they were computed."""

    def __init__(self, limits: ExpertLimits, on_expired: Callable[[Sequence[WorkItem]], None]) -> None:
        self._queue = ExpertQueue(limits)
        self._on_expired = on_expired
        self._changed = threading.Condition()
        self._taken_at = 0.0
        self.draining = False

    @property
    def queued_rows(self) -> int:
        """Rows that wait."""
        return self._queue.queued_rows

    def offer(self, item: WorkItem) -> float | None:
        """Takes an item; or returns after how many seconds to try again, when the queue is full of living items."""
        expired: list[WorkItem] = []
        with self._changed:
            if self._queue.is_full_for(item):
                expired = self._queue.drop_expired(time.monotonic())
            retry_after_s = self._queue.offer(item, time.monotonic())
            self._changed.notify()
        self._tell(expired)
        return retry_after_s

    def next_batch(self, timeout_s: float) -> Batch | None:
        """See ExpertWire."""
        until = time.monotonic() + timeout_s
        while True:
            with self._changed:
                batch, expired = self._queue.take(time.monotonic())
                left = until - time.monotonic()
                if batch is None and not expired and not self.draining and left > 0:
                    self._changed.wait(left)
                    batch, expired = self._queue.take(time.monotonic())
            self._tell(expired)
            if batch is not None or self.draining or time.monotonic() >= until:
                self._taken_at = time.monotonic()
                return batch

    def measure(self, batch: Batch) -> None:
        """The batch that was taken last is computed."""
        with self._changed:
            self._queue.measured(sum(len(item.rows) for item in batch.items), time.monotonic() - self._taken_at)

    def remove(self, unwanted: Callable[[WorkItem], bool]) -> None:
        """Drops items that nobody waits for."""
        with self._changed:
            self._queue.remove(unwanted)

    def count_invalid(self) -> None:
        """A dispatch was malformed."""
        with self._changed:
            self._queue.count_invalid()

    def drain(self) -> None:
        """Wakes the computing thread; what waits is still handed out, and then None at once."""
        with self._changed:
            self.draining = True
            self._changed.notify_all()

    def stats(self) -> QueueStats:
        """The figures."""
        with self._changed:
            return self._queue.stats()

    def _tell(self, expired: Sequence[WorkItem]) -> None:
        if expired:
            self._on_expired(expired)
