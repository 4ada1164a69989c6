"""Linear-attention layers (gated delta rule) in a packed step.

The library's module computes whole sequences [batch, tokens]; here it is called per group of the step's rows: all
rows that decode as one batch of single tokens, every chunk by itself. Between the calls its states live in the slot
cache. A new sequence starts from zero states, which equals the library's start without states.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.segments import PackedRows
from moe.models.backbone.tiles import TILE
from torch import Tensor, nn

RECURRENT_CLASSES = frozenset({"Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet"})
"""Modules whose use of their cache is known to be the one that `SlotStates` offers."""


@dataclass(frozen=True)
class RowGroup:
    """Rows that the module sees at once: [slots, tokens]. `rows` and `slots` are int64; `rows` is [slots * tokens]."""

    rows: Tensor
    slots: Tensor


def row_groups(rows: PackedRows) -> Iterator[RowGroup]:
    """The rows that decode together, then each chunk."""
    if rows.singles:
        singles = rows.singles
        yield RowGroup(torch.tensor([one.row for one in singles]), torch.tensor([one.slot for one in singles]))
    for chunk in rows.chunks:
        yield RowGroup(torch.arange(chunk.row, chunk.row + chunk.count), torch.tensor([chunk.slot]))


def token_groups(rows: PackedRows) -> Iterator[RowGroup]:
    """Deterministic mode: every sequence goes token by token; the n-th tokens of at most TILE sequences together."""
    first_rows, row = [], 0
    for segment in rows.segments:
        first_rows.append(row)
        row += segment.count
    for offset in range(max(segment.count for segment in rows.segments)):
        due = [
            (first + offset, segment.slot)
            for first, segment in zip(first_rows, rows.segments, strict=True)
            if segment.count > offset
        ]
        for begin in range(0, len(due), TILE):
            part = due[begin : begin + TILE]
            yield RowGroup(torch.tensor([one[0] for one in part]), torch.tensor([one[1] for one in part]))


class SlotStates:
    """The cache that the library's module sees during one call: the states of the call's slots.

    Filled up with zero states to `batch` sequences where the call is padded.
    """

    def __init__(self, cache: SlotCache, slots: Tensor, batch: int) -> None:
        self._cache, self._slots, self._padding = cache, slots, batch - slots.shape[0]
        self._convolution: Tensor | None = None

    def is_recording_past(self, *_: object) -> bool:
        """The library asks whether it must keep every intermediate state: never."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The last inputs of the convolution [batch, channels, kernel]; the module may change them in place."""
        self._convolution = self._gather(self._cache.convolutions[layer_idx])
        return self._convolution

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The states [batch, heads, key size, value size]."""
        return self._gather(self._cache.states[layer_idx])

    def update_conv_state(self, inputs: Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> Tensor:
        """Takes a chunk's inputs [batch, channels, tokens]; gives them with the earlier ones before them."""
        whole = torch.cat((self.get_conv_state(layer_idx), inputs), dim=-1)
        self._convolution = whole[..., -self._cache.convolutions[layer_idx].shape[-1] :]
        return whole

    def update_recurrent_state(self, states: Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> Tensor:
        """Stores the states, and the convolution's inputs with them: it is the module's last call on its cache."""
        count = self._slots.shape[0]
        self._cache.states[layer_idx][self._slots] = states[:count]
        if self._convolution is not None:
            self._cache.convolutions[layer_idx][self._slots] = self._convolution[:count]
        return states

    def _gather(self, states: Tensor) -> Tensor:
        gathered = states[self._slots]
        return F.pad(gathered, (0, 0) * (states.dim() - 1) + (0, self._padding)) if self._padding else gathered


def run_recurrent(
    forward: Callable[..., Tensor], hidden: Tensor, rows: PackedRows, cache: SlotCache, *, deterministic: bool
) -> Tensor:
    """The module's answer for packed rows [1, rows, hidden]."""
    result = torch.zeros_like(hidden)
    for group in token_groups(rows) if deterministic else row_groups(rows):
        sequences = group.slots.shape[0]
        batch = TILE if deterministic else sequences
        inputs = hidden[0, group.rows].view(sequences, -1, hidden.shape[-1])
        if batch > sequences:
            inputs = F.pad(inputs, (0, 0, 0, 0, 0, batch - sequences))
        outputs = forward(inputs, cache=SlotStates(cache, group.slots, batch))
        result[0, group.rows] = outputs[:sequences].flatten(0, 1)
    return result


def find_recurrent(model: nn.Module) -> dict[int, Any]:
    """The known linear-attention modules by layer."""
    modules: Iterable[Any] = model.modules()
    return {int(module.layer_idx): module for module in modules if type(module).__name__ in RECURRENT_CLASSES}


def wrap_recurrent(module: Any, *, deterministic: bool) -> None:
    """Makes a linear-attention module take packed rows, in place. Its `cache` argument is then a `StepCache`."""
    original = module.forward

    def forward(hidden_states: Tensor, cache: Any = None, **_: object) -> Tensor:
        return run_recurrent(original, hidden_states, cache.rows, cache.slots, deterministic=deterministic)

    module.forward = forward
