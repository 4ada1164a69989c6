"""What a group makes of a batch: each item's weighted partial sums. Pure: tensors in, tensors out.

The rows of all items go through the experts together, one pass over the weights for all routers. Items differ in dtypes
only where routers are set differently; those of one kind go together, as the dtypes decide where products round.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from moe.expert.packing import PackedWeights
from moe.kernels.group_ffn import PackedGroup
from moe.wire.port import WorkItem
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Result:
    """partials: [rows, hidden] for each item, in its partial_dtype. slots: expert id -> slots computed."""

    partials: tuple[Tensor, ...]
    slots: dict[int, int]


def compute(items: Sequence[WorkItem], weights: PackedWeights) -> Result:
    """The partials of the items, which are of one layer. KeyError for an expert or layer that is not held."""
    group = weights.layers[items[0].layer]
    kinds: dict[tuple[torch.dtype, ...], list[int]] = {}
    for place, item in enumerate(items):
        kinds.setdefault((item.rows.dtype, item.slot_weights.dtype, item.partial_dtype), []).append(place)
    partials: dict[int, Tensor] = {}
    for places in kinds.values():
        partials.update(zip(places, _joined(group, [items[place] for place in places]), strict=True))
    slots = Counter(expert for item in items for expert in item.slot_experts.tolist())
    return Result(tuple(partials[place] for place in range(len(items))), dict(slots))


def _joined(group: PackedGroup, items: list[WorkItem]) -> Sequence[Tensor]:
    """Items of the same dtypes in one call."""
    if len(items) == 1:
        item = items[0]
        return [group(item.rows, item.slot_rows, item.slot_experts, item.slot_weights, item.partial_dtype)]
    counts = [len(item.rows) for item in items]
    starts = (0, *accumulate(counts))
    partial = group(
        torch.cat([item.rows for item in items]),
        torch.cat([item.slot_rows + start for item, start in zip(items, starts, strict=False)]),
        torch.cat([item.slot_experts for item in items]),
        torch.cat([item.slot_weights for item in items]),
        items[0].partial_dtype,
    )
    return torch.split(partial, counts)
