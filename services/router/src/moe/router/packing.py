"""Makes a step's packed batch of the scheduler's works."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from moe.models.contract import PackedBatch, Segment
from moe.router.jobs import Job
from moe.router.ledger import StepLedger, owners_of
from moe.router.scheduler import Work


@dataclass(frozen=True)
class Step:
    """One step: who takes part, by place, with the ledger of what happens to them, and the batch.

    logit_rows: for each place the range of its rows in the step's logits.
    """

    works: Sequence[Work]
    jobs: Sequence[Job]
    ledger: StepLedger
    batch: PackedBatch
    logit_rows: Sequence[range]

    def served(self) -> list[int]:
        """Places of those that are neither lost nor cancelled."""
        return [i for i, job in enumerate(self.jobs) if i not in self.ledger.errors and not job.cancelled]


def pack(works: Sequence[Work], jobs: Sequence[Job]) -> Step:
    """The step of these works, their tokens one after the other, in order."""
    tokens: list[int] = []
    wanted: list[int] = []
    ranges: list[range] = []
    for work, job in zip(works, jobs, strict=True):
        rows = job.wanted_rows(work)
        ranges.append(range(len(wanted), len(wanted) + len(rows)))
        wanted += [len(tokens) + row for row in rows]
        tokens += job.tokens[work.start : work.start + work.count]
    segments = tuple(Segment(work.slot, work.start, work.count) for work in works)
    batch = PackedBatch(segments, torch.tensor(tokens, dtype=torch.int64), torch.tensor(wanted, dtype=torch.int64))
    ledger = StepLedger(owners_of([work.count for work in works]), len(works))
    return Step(works, jobs, ledger, batch, ranges)
