"""A step's rows: which slot and position each packed row belongs to, checked once and turned into index tensors once.

Everything that layers need per step is computed here or cached on the step, so that a layer does no work per row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from moe.kernels.attention import KeyRanges
from moe.models.backbone.geometry import Visibility
from moe.models.contract import PackedBatch, Segment
from moe.models.seams.errors import StepError
from torch import Tensor


@dataclass(frozen=True)
class Chunk:
    """A segment of more than one token: rows [row, row + count) of the step."""

    row: int
    slot: int
    start: int
    count: int


@dataclass(frozen=True)
class Single:
    """A segment of one token."""

    row: int
    slot: int
    position: int


class PackedRows:
    """The rows of one step. `count` are real, `padded` is what the model sees (more in deterministic mode only)."""

    def __init__(self, segments: Sequence[Segment], padded: int | None = None) -> None:
        self.segments = tuple(segments)
        self.count = sum(segment.count for segment in segments)
        self.padded = self.count if padded is None else padded
        self._places: dict[tuple[int, int], Tensor] = {}
        self._ranges: dict[Visibility, KeyRanges] = {}
        self.singles: list[Single] = []
        self.chunks: list[Chunk] = []
        row = 0
        for segment in self.segments:
            if segment.count == 1:
                self.singles.append(Single(row, segment.slot, segment.start))
            else:
                self.chunks.append(Chunk(row, segment.slot, segment.start, segment.count))
            row += segment.count

    @cached_property
    def slots(self) -> Tensor:
        """int64 [count], each row's slot."""
        return self._spread([segment.slot for segment in self.segments])

    @cached_property
    def positions(self) -> Tensor:
        """int64 [padded], each row's position in its sequence; 0 for padding."""
        if not self.chunks and self.padded == self.count:
            return torch.tensor([segment.start for segment in self.segments])
        positions = torch.zeros(self.padded, dtype=torch.int64)
        row = 0
        for segment in self.segments:
            torch.arange(segment.start, segment.start + segment.count, out=positions[row : row + segment.count])
            row += segment.count
        return positions

    @cached_property
    def indices(self) -> Tensor:
        """int64 [count], 0, 1, 2 ...: each real row's row in the batch."""
        return torch.arange(self.count)

    @cached_property
    def offsets(self) -> Tensor:
        """int64 [padded], 0, 1, 2 ..."""
        return torch.arange(self.padded)

    def places(self, heads: int, tokens: int) -> Tensor:
        """Where the rows lie in a slab [slots, heads, tokens] seen as one list: int64 [heads * count], by head."""
        key = (heads, tokens)
        if key not in self._places:
            first = self.slots * heads * tokens + self.positions[: self.count]
            self._places[key] = (first + torch.arange(heads)[:, None] * tokens).flatten()
        return self._places[key]

    def ranges(self, visibility: Visibility) -> KeyRanges:
        """The keys that each real row sees; its own is the last."""
        if visibility not in self._ranges:
            positions = self.positions[: self.count]
            firsts, ends = visibility.firsts(positions), positions + 1
            self._ranges[visibility] = KeyRanges(*(each.to(torch.int32) for each in (self.slots, firsts, ends)))
        return self._ranges[visibility]

    def _spread(self, values: list[int]) -> Tensor:
        if not self.chunks:
            return torch.tensor(values)
        counts = torch.tensor([segment.count for segment in self.segments])
        return torch.tensor(values).repeat_interleave(counts)


def check_batch(batch: PackedBatch, lengths: Sequence[int | None], slot_tokens: int, vocabulary: int) -> None:
    """Refuses a batch that breaks the contract, before anything is computed.

    lengths: tokens in each slot, None where a failed step left a state that can't be continued. Raises StepError.
    """
    if not batch.segments:
        raise StepError("segments: the batch is empty; a step needs at least one segment")
    seen: set[int] = set()
    for segment in batch.segments:
        _check_segment(segment, lengths, slot_tokens)
        if segment.slot in seen:
            raise StepError(f"segments: slot {segment.slot} occurs twice in one step; join its segments")
        seen.add(segment.slot)
    rows = sum(segment.count for segment in batch.segments)
    _check_ids("token_ids", batch.token_ids, vocabulary, rows)
    _check_ids("logit_rows", batch.logit_rows, rows, None)


def _check_segment(segment: Segment, lengths: Sequence[int | None], slot_tokens: int) -> None:
    if not 0 <= segment.slot < len(lengths):
        raise StepError(f"segments: slot {segment.slot} is outside 0..{len(lengths) - 1}")
    if segment.count < 1:
        raise StepError(f"segments: slot {segment.slot} has count {segment.count}; at least 1 is needed")
    if segment.start < 0 or segment.start + segment.count > slot_tokens:
        end = segment.start + segment.count
        raise StepError(
            f"segments: slot {segment.slot} would hold tokens {segment.start}..{end - 1}; it has room for {slot_tokens}"
        )
    held = lengths[segment.slot]
    if segment.start and segment.start != held:
        state = "a failed step's state" if held is None else f"{held} tokens"
        raise StepError(
            f"segments: slot {segment.slot} starts at {segment.start}, but holds {state}; start there or at 0"
        )


def _check_ids(name: str, ids: Tensor, bound: int, count: int | None) -> None:
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise StepError(f"{name}: got {ids.dtype} of shape {tuple(ids.shape)}; want int64 with one dimension")
    if count is not None and ids.shape[0] != count:
        raise StepError(f"{name}: got {ids.shape[0]} ids for segments of {count} tokens in all")
    if not ids.shape[0]:
        return
    low, high = (int(value) for value in ids.aminmax())
    if low < 0 or high >= bound:
        raise StepError(f"{name}: {low if low < 0 else high} is outside 0..{bound - 1}")
