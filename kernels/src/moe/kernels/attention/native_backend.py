"""Attention by kernels/csrc: keys are read where they lie, scores and sums are float32, rounded once."""

from ctypes import byref

import torch
from moe.kernels.attention.ranges import KeyRanges
from moe.kernels.dtypes import DTYPE_NUMBERS
from moe.kernels.native.library import CacheStruct, library, variant_number
from torch import Tensor


class NativeAttention:
    """As moe.kernels.attention.SlotAttention. variant: an instruction set of `native.variants()`, None for the best.
    pointer: to the cache's description, for other calls.

    Works with as many threads as torch is set to, where the work is worth waking them.
    """

    def __init__(self, keys: Tensor, values: Tensor, groups: int, *, variant: str | None = None) -> None:
        self._library, self._variant = library(), variant_number(variant)
        self._sinks: Tensor | None = None
        self._wide_sinks: Tensor | None = None
        self._held, self._value_size, self.dtype = (keys, values), values.shape[-1], keys.dtype
        self._cache = CacheStruct(
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            sinks=None,
            heads=keys.shape[1],
            groups=groups,
            key_size=keys.shape[-1],
            value_size=values.shape[-1],
            key_slot_stride=keys.stride(0),
            key_head_stride=keys.stride(1),
            key_token_stride=keys.stride(2),
            value_slot_stride=values.stride(0),
            value_head_stride=values.stride(1),
            value_token_stride=values.stride(2),
            scale=1.0,
            dtype=DTYPE_NUMBERS[keys.dtype],
        )
        self.pointer = byref(self._cache)

    def __call__(self, query: Tensor, ranges: KeyRanges, scale: float, sinks: Tensor | None) -> Tensor:
        """[n, query heads, size] to [n, query heads, v]."""
        self.prepare(scale, sinks)
        if query.stride(2) != 1:
            query = query.contiguous()
        n, heads, _ = query.shape
        out = torch.empty(n, heads, self._value_size, dtype=query.dtype)
        self._library.call(
            "moe_attend",
            self._variant,
            self.pointer,
            query.data_ptr(),
            query.stride(0),
            query.stride(1),
            n,
            ranges.slots_pointer,
            ranges.firsts_pointer,
            ranges.ends_pointer,
            out.data_ptr(),
            heads * self._value_size,
            torch.get_num_threads(),
        )
        return out

    def prepare(self, scale: float, sinks: Tensor | None) -> None:
        """Writes what a layer gives its calls into the cache's description; its sinks are always the same tensor."""
        self._cache.scale = scale
        if sinks is self._sinks:
            return
        self._sinks = sinks
        self._wide_sinks = None if sinks is None else sinks.detach().float().contiguous()
        self._cache.sinks = None if self._wide_sinks is None else self._wide_sinks.data_ptr()

    def store(self, keys: Tensor, values: Tensor, ranges: KeyRanges) -> None:
        """See SlotAttention.store."""
        keys, values = (each if each.stride(2) == 1 else each.contiguous() for each in (keys, values))
        self._library.call(
            "moe_store",
            self.pointer,
            keys.data_ptr(),
            keys.stride(0),
            keys.stride(1),
            values.data_ptr(),
            values.stride(0),
            values.stride(1),
            len(ranges),
            ranges.slots_pointer,
            ranges.ends_pointer,
        )
