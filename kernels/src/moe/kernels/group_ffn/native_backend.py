"""The group of kernels/csrc: every expert packed once, one call for all of them."""

import ctypes
import weakref
from collections.abc import Mapping
from ctypes import byref, c_void_p

import torch
from moe.kernels.dtypes import DTYPE_NUMBERS
from moe.kernels.ffn import ACTIVATIONS, FfnSpec
from moe.kernels.group_ffn.weights import Expert
from moe.kernels.native.library import FfnStruct, NativeError, library, variant_number
from moe.kernels.native.matrices import matrix_struct
from torch import Tensor

_NUMBERS = {name: number for number, name in enumerate(("silu", "gelu", "gelu_tanh", "relu2", "clamped_swiglu"))}
assert set(_NUMBERS) == set(ACTIVATIONS)


class NativeGroup:
    """As moe.kernels.group_ffn.PackedGroup. variant: an instruction set in `native.variants()`, the best one for None.

    round_rows: quantised experts get their rows rounded to bytes (moe.kernels.quantised.round_rows).
    Works with as many threads as torch is set to. Raises NativeError when the library is not there or memory is short.
    """

    def __init__(
        self,
        experts: Mapping[int, Expert],
        spec: FfnSpec,
        tile_rows: int | None = None,
        *,
        variant: str | None = None,
        round_rows: bool = False,
    ) -> None:
        some = next(iter(experts.values()))
        self._hidden, self._dtype, self._library = some.hidden, some.dtype, library()
        self._round_rows = round_rows
        self._ids = frozenset(experts)
        formula, handle = _formula(spec, some), c_void_p()
        self._library.call("moe_group_new", variant_number(variant), byref(formula), byref(handle))
        self._handle = handle
        weakref.finalize(self, self._library.function("moe_group_free"), handle)
        for expert in sorted(experts):
            self._add(expert, experts[expert])
        self.bytes = int(self._library.function("moe_group_bytes")(handle))

    def __call__(
        self, rows: Tensor, slot_rows: Tensor, slot_experts: Tensor, slot_weights: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """As PackedGroup's; rows are of the experts' dtype."""
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        index, ids = (tensor.to(torch.int32).contiguous() for tensor in (slot_rows, slot_experts))
        weights = slot_weights.contiguous()
        partial = torch.empty(len(rows), self._hidden, dtype=dtype)
        try:
            self._library.call(
                "moe_group_run",
                self._handle,
                rows.data_ptr(),
                rows.stride(0),
                len(rows),
                index.data_ptr(),
                ids.data_ptr(),
                weights.data_ptr(),
                DTYPE_NUMBERS[weights.dtype],
                len(index),
                partial.data_ptr(),
                DTYPE_NUMBERS[dtype],
                torch.get_num_threads(),
            )
        except NativeError as error:
            raise self._explained(error, slot_experts) from error
        return partial

    def entry(self) -> tuple[int, int]:
        """Addresses of `moe_group_run` and of the handle. The caller keeps this object alive."""
        address = ctypes.cast(self._library.function("moe_group_run"), c_void_p).value
        assert address is not None
        assert self._handle.value is not None
        return address, self._handle.value

    def _add(self, expert: int, weights: Expert) -> None:
        up, down = (matrix_struct(each, round_rows=self._round_rows) for each in (weights.up, weights.down))
        biases = [None if bias is None else bias.float().contiguous() for bias in (weights.up_bias, weights.down_bias)]
        pointers = [None if bias is None else bias.data_ptr() for bias in biases]
        self._library.call("moe_group_add", self._handle, expert, byref(up), byref(down), *pointers)

    def _explained(self, error: NativeError, slot_experts: Tensor) -> Exception:
        """What the other back ends raise for the same mistake."""
        foreign = sorted(set(slot_experts.tolist()) - self._ids)
        if foreign:
            return KeyError(foreign[0])
        return ValueError(str(error)) if str(error).startswith("slot_rows") else error


def native_w8a8_group(experts: Mapping[int, Expert], spec: FfnSpec, tile_rows: int | None) -> NativeGroup:
    """The group with rows of quantised experts rounded to bytes: cheaper at many rows, and approximate."""
    return NativeGroup(experts, spec, tile_rows, round_rows=True)


def _formula(spec: FfnSpec, some: Expert) -> FfnStruct:
    return FfnStruct(
        some.hidden,
        some.inner,
        DTYPE_NUMBERS[some.dtype],
        _NUMBERS[spec.activation],
        int(spec.gated),
        0.0 if spec.limit is None else spec.limit,
        0.0 if spec.alpha is None else spec.alpha,
    )
