"""The slot cache: keys and values of every sequence in slabs reserved once, and recurrent states beside them.

Memory never grows after `SlotCache` is made. A slot is cleaned when a sequence begins in it, so that nothing of the
one before, not even a NaN, can reach its attention: masked keys are multiplied by zero, and zero times NaN is NaN.
"""

from collections.abc import Iterable

import torch
from moe.kernels.attention import SlotAttention
from moe.models.backbone.geometry import AttentionLayer, Geometry
from moe.models.backbone.memory import available_bytes, readable, untouched_zeros
from moe.models.backbone.segments import PackedRows
from torch import Tensor

ROUND_TOKENS = 32
"""Slots hold a multiple of this many tokens, so that every head starts on a cache line and query tiles fit."""


class SlotCache:
    """Slabs [slots, heads, tokens, size] per attention layer, states [slots, ...] per recurrent layer."""

    def __init__(self, geometry: Geometry, slots: int, slot_tokens: int, *, native: bool = False) -> None:
        """native: attention runs in moe.kernels, in every layer; see `attention`."""
        self.geometry = geometry
        self.slots, self.slot_tokens = slots, slot_tokens
        tokens = -(-slot_tokens // ROUND_TOKENS) * ROUND_TOKENS
        refuse_beyond_memory(geometry, slots, tokens)
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        for index, layer in geometry.attention.items():
            self.keys[index], self.values[index] = _slabs(layer, slots, tokens)
        self.attention: dict[int, SlotAttention] = {}
        if native:
            self.attention = {
                index: SlotAttention(self.keys[index], self.values[index], groups=layer.groups, backend="native")
                for index, layer in geometry.attention.items()
            }
        self.convolutions: dict[int, Tensor] = {}
        self.states: dict[int, Tensor] = {}
        for index, recurrent in geometry.recurrent.items():
            shape, dtype = (slots, *recurrent.convolution), recurrent.convolution_dtype
            self.convolutions[index] = torch.zeros(shape, dtype=dtype)
            shape, dtype = (slots, *recurrent.state), recurrent.state_dtype
            self.states[index] = torch.zeros(shape, dtype=dtype)
        self.lengths: list[int | None] = [0] * slots
        self._used = [0] * slots

    def begin(self, rows: PackedRows) -> None:
        """Cleans the slots in which sequences begin and notes which tokens are about to be written."""
        for segment in rows.segments:
            if segment.start == 0:
                self._clean(segment.slot)
            self._used[segment.slot] = max(self._used[segment.slot], segment.start + segment.count)

    def commit(self, rows: PackedRows) -> None:
        """Counts the step's tokens, after it succeeded."""
        for segment in rows.segments:
            self.lengths[segment.slot] = segment.start + segment.count

    def spoil(self, rows: PackedRows) -> None:
        """After a failed step: a retry writes keys and values again, but a recurrent state has moved on for good."""
        if self.geometry.recurrent:
            for segment in rows.segments:
                self.lengths[segment.slot] = None

    def release(self, slot: int) -> None:
        """Forgets a slot's sequence."""
        self._clean(slot)

    def write(self, layer: int, rows: PackedRows, keys: Tensor, values: Tensor) -> None:
        """Stores the rows' keys [heads, count, size] and values; a latent layer stores them joined, as its keys."""
        if self.geometry.attention[layer].latent:
            _store(self.keys[layer], rows, torch.cat((keys, values), dim=-1))
            return
        _store(self.keys[layer], rows, keys)
        _store(self.values[layer], rows, values)

    def _clean(self, slot: int) -> None:
        for slab in _all(self.keys, self.values):
            slab[slot, :, : self._used[slot]].zero_()
        for state in _all(self.convolutions, self.states):
            state[slot].zero_()
        self._used[slot], self.lengths[slot] = 0, 0


def _slabs(layer: AttentionLayer, slots: int, tokens: int) -> tuple[Tensor, Tensor]:
    keys = untouched_zeros((slots, layer.heads, tokens, layer.key_size), layer.dtype)
    if layer.latent:
        return keys, keys[..., : layer.value_size]
    return keys, untouched_zeros((slots, layer.heads, tokens, layer.value_size), layer.dtype)


def _store(slab: Tensor, rows: PackedRows, values: Tensor) -> None:
    """Copies [heads, count, size] to the rows' places: as one list of rows, half the cost of indexing by three."""
    places = rows.places(slab.shape[1], slab.shape[2])
    slab.view(-1, slab.shape[3]).index_copy_(0, places, values.reshape(-1, slab.shape[3]))


def _all(*groups: dict[int, Tensor]) -> Iterable[Tensor]:
    for group in groups:
        yield from group.values()


def refuse_beyond_memory(geometry: Geometry, slots: int, tokens: int) -> None:
    """Raises MemoryError, with the sizes, when the cache can't fit into the memory that is left."""
    needed = slots * (tokens * geometry.bytes_per_token + geometry.bytes_per_slot)
    available = available_bytes()
    if available is not None and needed > available:
        raise MemoryError(
            f"cache: {slots} slots of {tokens} tokens take {readable(needed)} "
            f"({geometry.bytes_per_token} bytes a token, {geometry.bytes_per_slot} a slot); "
            f"{readable(available)} are free; ask for fewer slots or tokens"
        )
