"""Attention over packed rows: rows that decode are batched by neighbouring slots, chunks go one by one.

Keys are read in place: a run of consecutive slots with similar lengths is one view of the slab. Copying keys to
batch arbitrary slots was measured slower than separate calls (two copies of what attention reads once).
Which rows go together and their masks are worked out once per step and kind of visibility, not per layer.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from moe.models.backbone.attend import attend
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.geometry import Visibility
from moe.models.backbone.segments import Chunk, PackedRows, Single
from torch import Tensor

WASTE_TOKENS = 256
"""Padding that a run of slots may carry; one more call costs as much as attending to about this many keys."""


@dataclass(frozen=True)
class Run:
    """Decoding rows whose slots are consecutive; keys [low, high) of slots [first, last).

    rows: where they stand among the plan's decoding rows.
    """

    rows: slice
    first: int
    last: int
    low: int
    high: int
    mask: Tensor | None


@dataclass(frozen=True)
class Stretch:
    """A prefill chunk's rows, all in one slot; keys [low, high)."""

    chunk: Chunk
    low: int
    mask: Tensor | None

    @property
    def rows(self) -> slice:
        """The chunk's rows in the step."""
        return slice(self.chunk.row, self.chunk.row + self.chunk.count)

    @property
    def high(self) -> int:
        """End of the keys, exclusive: the chunk's own last token is the last."""
        return self.chunk.start + self.chunk.count


@dataclass(frozen=True)
class Plan:
    """How one step's rows attend under one visibility.

    decoding: the step's rows that decode, in the order of the runs.
    """

    decoding: Tensor | slice
    runs: tuple[Run, ...]
    stretches: tuple[Stretch, ...]


def plan_attention(rows: PackedRows, visibility: Visibility, dtype: torch.dtype) -> Plan:
    """Works out runs, stretches and masks (0 or -inf in `dtype`) for a step."""
    groups = neighbours(rows.singles, visibility)
    ends = [0, *accumulate(len(group) for group in groups)]
    runs = tuple(
        _run(group, slice(begin, end), visibility, dtype)
        for group, begin, end in zip(groups, ends[:-1], ends[1:], strict=True)
    )
    stretches = tuple(stretch_of(chunk, visibility, dtype) for chunk in rows.chunks)
    return Plan(_step_rows([single.row for group in groups for single in group]), runs, stretches)


def neighbours(singles: list[Single], visibility: Visibility) -> list[list[Single]]:
    """Groups rows whose slots follow one another, as long as padding them to one length stays cheap."""
    groups: list[list[Single]] = []
    longest = shortest_sum = 0
    for single in sorted(singles, key=lambda one: one.slot):
        keys = single.position + 1 - visibility.first(single.position)
        last = groups[-1] if groups else None
        if last and single.slot == last[-1].slot + 1:
            wasted = (len(last) + 1) * max(longest, keys) - shortest_sum - keys
            if wasted <= WASTE_TOKENS:
                last.append(single)
                longest, shortest_sum = max(longest, keys), shortest_sum + keys
                continue
        groups.append([single])
        longest = shortest_sum = keys
    return groups


def _run(singles: list[Single], rows: slice, visibility: Visibility, dtype: torch.dtype) -> Run:
    lows = [visibility.first(one.position) for one in singles]
    highs = [one.position + 1 for one in singles]
    low, high = min(lows), max(highs)
    mask = None
    if max(lows) > low or min(highs) < high:
        keys = torch.arange(low, high)
        hidden = (keys < torch.tensor(lows)[:, None]) | (keys >= torch.tensor(highs)[:, None])
        mask = _additive(hidden, dtype)[:, None, None, None]
    return Run(rows, singles[0].slot, singles[-1].slot + 1, low, high, mask)


def _step_rows(rows: list[int]) -> Tensor | slice:
    if not rows or rows == list(range(rows[0], rows[0] + len(rows))):
        first = rows[0] if rows else 0
        return slice(first, first + len(rows))
    return torch.tensor(rows)


def stretch_of(chunk: Chunk, visibility: Visibility, dtype: torch.dtype) -> Stretch:
    """How a chunk attends under one visibility."""
    low = visibility.first(chunk.start)
    high = chunk.start + chunk.count
    if chunk.start == low and visibility.first(high - 1) == low:
        return Stretch(chunk, low, None)
    queries = torch.arange(chunk.start, high)
    keys = torch.arange(low, high)
    hidden = (keys > queries[:, None]) | (keys < visibility.firsts(queries)[:, None])
    return Stretch(chunk, low, _additive(hidden, dtype))


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, float("-inf"))


def attend_packed(
    plan: Plan, cache: SlotCache, layer: int, query: Tensor, *, scale: float, sinks: Tensor | None
) -> Tensor:
    """Attention of the step's queries [rows, query heads, size] over the cache; gives [rows, query heads, v].

    sinks: [query heads] or None.
    """
    keys, values = cache.keys[layer], cache.values[layer]
    if not plan.stretches and isinstance(plan.decoding, slice):
        return attend_runs(plan, keys, values, query, scale=scale, sinks=sinks)
    result = query.new_empty(*query.shape[:2], values.shape[-1])
    if plan.runs:
        result[plan.decoding] = attend_runs(plan, keys, values, query[plan.decoding], scale=scale, sinks=sinks)
    for stretch in plan.stretches:
        slot = stretch.chunk.slot
        key, value = (slab[slot : slot + 1, :, stretch.low : stretch.high] for slab in (keys, values))
        result[stretch.rows] = attend_stretch(stretch, query[stretch.rows], key, value, scale=scale, sinks=sinks)
    return result


def attend_runs(
    plan: Plan, keys: Tensor, values: Tensor, query: Tensor, *, scale: float, sinks: Tensor | None
) -> Tensor:
    """Queries [n, query heads, size] of the plan's decoding rows over a layer's slabs; gives [n, query heads, v]."""
    grouped = query.reshape(query.shape[0], keys.shape[1], -1, 1, query.shape[-1])
    mixed = [
        attend(
            grouped[run.rows],
            keys[run.first : run.last, :, run.low : run.high],
            values[run.first : run.last, :, run.low : run.high],
            scale=scale,
            mask=run.mask,
            sinks=sinks,
        )
        for run in plan.runs
    ]
    joined = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
    return joined.flatten(1, 3)


def attend_stretch(
    stretch: Stretch, query: Tensor, key: Tensor, value: Tensor, *, scale: float, sinks: Tensor | None
) -> Tensor:
    """A chunk's queries [n, query heads, size] over keys [1, heads, length, size]; gives [n, query heads, v]."""
    n, query_heads, _ = query.shape
    heads = key.shape[1]
    if sinks is None:
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key,
            value,
            attn_mask=stretch.mask,
            is_causal=stretch.mask is None,
            scale=scale,
            enable_gqa=heads != query_heads,
        )
        return mixed[0].transpose(0, 1)
    mask = stretch.mask
    if mask is None:
        mask = query.new_full((n, n), float("-inf")).triu(1)
    grouped = query.transpose(0, 1).reshape(1, heads, -1, n, query.shape[-1])
    mixed = attend(grouped, key, value, scale=scale, mask=mask, sinks=sinks)
    return mixed[0].flatten(0, 1).transpose(0, 1)
