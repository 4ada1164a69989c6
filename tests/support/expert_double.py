"""An expert's end of the wire in memory: batches are put in by hand, answers are read off."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from moe.wire.port import Batch, QueueStats, WorkItem
from torch import Tensor


@dataclass
class InMemoryExpertWire:
    """Implements moe.wire.port.ExpertWire. finished and failed hold the answers in order; `answers` counts them."""

    name: str = "memory"
    finished: list[tuple[Batch, list[Tensor]]] = field(default_factory=list)
    failed: list[tuple[Batch, str]] = field(default_factory=list)
    fail_raises: bool = False
    drained: bool = False
    answers: "queue.Queue[str]" = field(default_factory=queue.Queue)
    _batches: "queue.Queue[Batch | None]" = field(default_factory=queue.Queue)

    def put(self, *items: WorkItem) -> None:
        """A batch that waits."""
        self._batches.put(Batch(items[0].layer, items))

    def next_batch(self, timeout_s: float) -> Batch | None:
        """The oldest batch; None after the time-out or, once drained, when nothing waits."""
        try:
            return self._batches.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return None

    def finish(self, batch: Batch, partials: Sequence[Tensor]) -> None:
        self.finished.append((batch, list(partials)))
        self.answers.put("finished")

    def fail(self, batch: Batch, message: str) -> None:
        self.failed.append((batch, message))
        self.answers.put("failed")
        if self.fail_raises:
            raise RuntimeError("no route")

    def drain(self) -> None:
        """Wakes a thread that waits, as the real one does."""
        self.drained = True
        self._batches.put(None)

    def stats(self) -> QueueStats:
        return QueueStats(queued_rows=self._batches.qsize(), overloaded=2, expired=3, invalid=4)


def work(
    rows: Tensor,
    slots: Sequence[tuple[int, int, float]],
    *,
    layer: int = 0,
    part: int = 0,
    partial_dtype: torch.dtype | None = None,
    weight_dtype: torch.dtype = torch.float32,
) -> WorkItem:
    """A work item. slots: (row, expert, weight), rows not decreasing."""
    return WorkItem(
        call_id=7,
        layer=layer,
        part=part,
        aggregator="agg-0",
        rows=rows,
        slot_rows=torch.tensor([row for row, _, _ in slots], dtype=torch.int32),
        slot_experts=torch.tensor([expert for _, expert, _ in slots], dtype=torch.int32),
        slot_weights=torch.tensor([weight for _, _, weight in slots], dtype=weight_dtype),
        partial_dtype=partial_dtype or rows.dtype,
        deadline=None,
    )
