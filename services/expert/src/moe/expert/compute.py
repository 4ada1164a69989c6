"""What a group makes of a batch: each item's weighted partial sums. Pure: tensors in, tensors out.

The rows of all items go through an expert together, one pass over its weights for all routers; then every item's slots
are weighed and summed apart, in the order that its router sent them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from moe.expert.weights import GroupWeights
from moe.kernels.ffn import AUTO, ExpertWeights, ffn
from moe.kernels.permute import SlotGroups, group_slots
from moe.kernels.slot_sum import slot_sum
from moe.wire.port import WorkItem
from torch import Tensor


@dataclass(frozen=True)
class Computation:
    """How rows are computed. backend: of the feed-forward kernel; tile_rows: fixed shape of a call, None for any."""

    backend: str = AUTO
    tile_rows: int | None = None

    def expert(self, rows: Tensor, weights: GroupWeights, layer: int, expert: int) -> Tensor:
        """Rows [n, hidden] through one expert; [n, hidden] in the weights' dtype."""
        held: ExpertWeights = weights.layers[layer][expert]
        return ffn(rows, held, weights.spec, backend=self.backend, tile_rows=self.tile_rows)


@dataclass(frozen=True, eq=False)
class Joined:
    """The rows and slots of several items one after the other. slot_starts: where each item's slots begin; the end."""

    rows: Tensor
    slot_rows: Tensor
    slot_experts: Tensor
    slot_starts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Result:
    """partials: [rows, hidden] for each item, in its partial_dtype. slots: expert id -> slots computed."""

    partials: tuple[Tensor, ...]
    slots: dict[int, int]


def compute(items: Sequence[WorkItem], weights: GroupWeights, computation: Computation) -> Result:
    """The partials of the items, which are of one layer. KeyError for an expert or layer that is not held."""
    joined = _join(items)
    groups = group_slots(joined.slot_experts)
    outputs = _outputs(joined, groups, weights, computation, items[0].layer)
    partials = tuple(
        slot_sum(outputs[start:end], item.slot_rows, item.slot_weights, len(item.rows), item.partial_dtype)
        for item, (start, end) in zip(items, pairwise(joined.slot_starts), strict=True)
    )
    return Result(partials, {expert: len(places) for expert, places in groups})


def _outputs(joined: Joined, groups: SlotGroups, weights: GroupWeights, computation: Computation, layer: int) -> Tensor:
    """What each slot's expert makes of its row, [slots, hidden]."""
    if len(groups.experts) == 1:
        return computation.expert(_gather(joined.rows, joined.slot_rows), weights, layer, groups.experts[0])
    outputs = joined.rows.new_empty(len(joined.slot_experts), weights.hidden, dtype=weights.dtype)
    for expert, places in groups:
        rows = _gather(joined.rows, joined.slot_rows.index_select(0, places))
        outputs.index_copy_(0, places, computation.expert(rows, weights, layer, expert))
    return outputs


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    """The rows of an index; without a copy when it names each in order, as when every row goes to the expert."""
    every = len(index) == len(rows) and torch.equal(index, torch.arange(len(rows), dtype=index.dtype))
    return rows if every else rows.index_select(0, index)


def _join(items: Sequence[WorkItem]) -> Joined:
    row_starts = (0, *accumulate(len(item.rows) for item in items))
    slot_starts = (0, *accumulate(len(item.slot_rows) for item in items))
    if len(items) == 1:
        return Joined(items[0].rows, items[0].slot_rows, items[0].slot_experts, slot_starts)
    return Joined(
        torch.cat([item.rows for item in items]),
        torch.cat([item.slot_rows + start for item, start in zip(items, row_starts, strict=False)]),
        torch.cat([item.slot_experts for item in items]),
        slot_starts,
    )
