"""What an expert counts, written by its compute thread and read by the server's loop."""

import threading
from collections import Counter
from collections.abc import Mapping

from moe.api.control.v1 import control_pb2
from moe.wire.ends import Computed
from moe.wire.port import QueueStats


class Counters:
    """Counters since the start; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = 0
        self._batches = 0
        self._busy_s = 0.0
        self._slots: Counter[int] = Counter()

    def computed(self, rows: int, slots: Mapping[int, int], seconds: float) -> None:
        """A batch was computed. slots: expert id -> slots."""
        with self._lock:
            self._rows += rows
            self._batches += 1
            self._busy_s += seconds
            self._slots.update(slots)

    def message(self, queue: QueueStats, natively: Computed, kernel: str) -> control_pb2.ExpertStats:
        """All figures as moe.control.v1 has them. natively: what the wire computed beside the compute thread."""
        with self._lock:
            return control_pb2.ExpertStats(
                rows=self._rows + natively.rows,
                slots_by_expert=self._slots + Counter(natively.slots),
                batches=self._batches + natively.batches,
                busy_s=self._busy_s + natively.busy_s,
                queued_rows=queue.queued_rows,
                overloaded=queue.overloaded,
                expired=queue.expired,
                invalid=queue.invalid,
                dispatches=queue.dispatches,
                queue_wait_s=queue.waited_s,
                rows_per_s=queue.rows_per_s,
                kernel=kernel,
            )
