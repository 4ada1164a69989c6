"""A router's inside, driven by a test: backbone and layer calls to real processes, with every logit in sight."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from moe.aggregator.hosting import combiner_for
from moe.discovery.file import FileDirectory
from moe.models.backbone import load_backbone
from moe.models.contract import Experts, PackedBatch, Segment
from moe.operator.planner import Placement
from moe.router.accounting import SlotCounter
from moe.router.fleet import FleetTracker
from moe.router.layer_call import CallSettings, LayerCaller
from moe.router.ledger import StepLedger, owners_of
from moe.router.remote_experts import RemoteExperts
from moe.wire.choice import load
from moe.wire.combining import Combining
from moe.wire.port import MissingPolicy
from moe.wire.settings import CombinerLimits
from support.processes import Fleet
from torch import Tensor

BeforeStep = Callable[[int], None]


class Distributed:
    """A backbone whose experts are the processes of a fleet. `experts` may be wrapped before `logits` is called.

    wire: of the router's end; one with a combiner of the test's inside has to be grpcio.
    """

    def __init__(
        self,
        package: Path,
        fleet: Fleet,
        placement: Placement,
        *,
        deterministic: bool = False,
        combiner: Combining | None = None,
        policy: MissingPolicy = MissingPolicy.WAIT,
        timeout_s: float = 60.0,
        dtype: torch.dtype | Literal["auto"] = "auto",
        wire: str = "auto",
    ) -> None:
        embedded = placement is Placement.EMBEDDED
        self.backbone = load_backbone(package, dtype=dtype, deterministic=deterministic)
        info = self.backbone.info
        experts = max(info.moe_layers.values())
        self._directory = FileDirectory(fleet.directory)
        ends = load("grpcio" if combiner else wire)
        inside = combiner or combiner_for(ends, CombinerLimits())
        self._wire = ends.router("router-0", combiner=inside if embedded else None)
        self.caller = LayerCaller(
            self._wire, FleetTracker(self._directory, experts), CallSettings(policy, timeout_s, embedded)
        )
        self._counter = SlotCounter(experts)
        self._remote = RemoteExperts(self.caller, info.moe_layers, self._counter)
        self.experts: Experts = self._remote

    def logits(
        self, sequences: Sequence[Sequence[int]], prompts: Sequence[int], chunk: int, before: BeforeStep | None = None
    ) -> list[Tensor]:
        """Float32 [tokens, vocabulary] for each sequence, all packed ragged into the same steps.

        prompts: how many tokens of each sequence are its prompt, computed in chunks of at most `chunk`; the rest goes
        one token a step, as when decoding. before: called with each step's number.
        """
        run = PackedRun(self.backbone, sequences, prompts, chunk)
        step = 0
        while run.open():
            if before:
                before(step)
            batch = run.next_batch()
            ledger = StepLedger(owners_of([segment.count for segment in batch.segments]), len(batch.segments))
            self._remote.begin(ledger, lambda: False)
            run.take(self.backbone.step(batch, self.experts))
            self._counter.finish(len(batch.segments))
            if ledger.errors:
                raise next(iter(ledger.errors.values()))
            step += 1
        return run.results()

    def close(self) -> None:
        """Ends the streams."""
        self._wire.close()
        self._directory.close()


class PackedRun:
    """Steps sequences through a backbone as an engine would, but with given tokens and all logits kept."""

    def __init__(
        self, backbone: object, sequences: Sequence[Sequence[int]], prompts: Sequence[int], chunk: int
    ) -> None:
        self._sequences, self._prompts, self._chunk = sequences, prompts, chunk
        self._done = [0] * len(sequences)
        self._rows: list[list[Tensor]] = [[] for _ in sequences]
        self._batch: list[tuple[int, int]] = []
        backbone.allocate(len(sequences), max(map(len, sequences)))  # type: ignore[attr-defined]

    def open(self) -> bool:
        """Whether tokens are left."""
        return any(done < len(tokens) for done, tokens in zip(self._done, self._sequences, strict=True))

    def next_batch(self) -> PackedBatch:
        """Decoding sequences first, then chunks of prompts."""
        self._batch = sorted(
            [
                (slot, self._count(slot))
                for slot, tokens in enumerate(self._sequences)
                if self._done[slot] < len(tokens)
            ],
            key=lambda work: (work[1] > 1, work[0]),
        )
        segments = [Segment(slot, self._done[slot], count) for slot, count in self._batch]
        ids = [token for s in segments for token in self._sequences[s.slot][s.start : s.start + s.count]]
        return PackedBatch(segments, torch.tensor(ids), torch.arange(len(ids)))

    def take(self, logits: Tensor) -> None:
        """The step's logits, all rows."""
        parts = logits.split([count for _, count in self._batch])
        for (slot, count), part in zip(self._batch, parts, strict=True):
            self._rows[slot].append(part)
            self._done[slot] += count

    def results(self) -> list[Tensor]:
        """[tokens, vocabulary] of each sequence."""
        return [torch.cat(rows) for rows in self._rows]

    def _count(self, slot: int) -> int:
        left = self._prompts[slot] - self._done[slot]
        return min(left, self._chunk) if left > 0 else 1


def local_logits(
    backbone: object, experts: Experts, sequences: Sequence[Sequence[int]], prompts: Sequence[int], chunk: int
) -> list[Tensor]:
    """As Distributed.logits, with experts in this process."""
    run = PackedRun(backbone, sequences, prompts, chunk)
    while run.open():
        run.take(backbone.step(run.next_batch(), experts))  # type: ignore[attr-defined]
    return run.results()
