"""The attention half of a decoder layer, from norm to norm, in one call of kernels/csrc.

Each step rounds where torch's operators do. Native alone; callers have the steps one by one for all else.
"""

from ctypes import byref

import torch
from moe.kernels.attention.native_backend import NativeAttention
from moe.kernels.attention.projection import Projection, Rotary, check_rows
from moe.kernels.attention.ranges import KeyRanges
from moe.kernels.dtypes import DTYPE_NUMBERS
from moe.kernels.linear import PackedLinear
from moe.kernels.linear.native_backend import NativeLinear
from moe.kernels.native.library import LayerStruct, NormStruct, library, variant_number
from moe.kernels.rms_norm import RmsNorm
from torch import Tensor


class HalfLayer:
    """before, after: norms of rows in front of the attention, and of what goes on to the feed-forward half.

    Raises ValueError for an output of another back end than native, and for widths that don't fit.
    """

    def __init__(self, before: RmsNorm, projection: Projection, output: PackedLinear, after: RmsNorm) -> None:
        layer = output.layer
        if not isinstance(layer, NativeLinear):
            raise ValueError(f"output: runs {output.backend}, want native")
        widths = [before.weight.shape[0], after.weight.shape[0], output.out]
        if len({*widths, projection.columns}) > 1:
            raise ValueError(f"norms and output: got {widths}, want {projection.columns}, the projection's input")
        self._held = (before, projection, output, after)
        self._library, self._variant, self._hidden = library(), variant_number(None), output.out
        self._width, self._mixed = projection.width, output.columns
        self._struct = LayerStruct(
            projection.struct, _norm(before), _norm(after), output=layer.handle, hidden=self._hidden
        )
        self._pointer = byref(self._struct)

    def __call__(
        self,
        attention: NativeAttention,
        rows: Tensor,
        rotary: Rotary,
        ranges: KeyRanges,
        *,
        scale: float,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Rows [n, hidden] to (residual, normed), each [n, hidden]; keys and values are stored where the ranges end.

        scale, sinks: see SlotAttention. Raises ValueError for rows and angles that don't fit.
        """
        n = len(ranges)
        check_rows(rows, [n, self._hidden], rotary, attention.dtype)
        attention.prepare(scale, sinks)
        between = torch.empty(n, self._width + self._mixed, dtype=rows.dtype)
        made = torch.empty(2, n, self._hidden, dtype=rows.dtype)
        begin, size = between.data_ptr(), rows.element_size()
        first = made.data_ptr()
        self._library.call(
            "moe_layer_attend",
            self._variant,
            self._pointer,
            attention.pointer,
            rotary.pointer,
            rows.data_ptr(),
            rows.stride(0),
            n,
            ranges.slots_pointer,
            ranges.firsts_pointer,
            ranges.ends_pointer,
            begin,
            begin + n * self._width * size,
            first,
            first + n * self._hidden * size,
            torch.get_num_threads(),
        )
        residual, normed = made.unbind(0)
        return residual, normed

    def close(self, residual: Tensor, made: Tensor) -> Tensor:
        """What the layer gives: its residual plus what the feed-forward half made, each [n, hidden], rounded once.

        Raises ValueError for rows that don't fit.
        """
        wanted = (residual.shape, residual.dtype)
        if (made.shape, made.dtype) != wanted or residual.dim() != 2:
            raise ValueError(f"made: got {made.dtype} {list(made.shape)}, want {residual.dtype} {list(residual.shape)}")
        one, other = residual.contiguous(), made.contiguous()
        out = torch.empty_like(one)
        self._library.call(
            "moe_add",
            self._variant,
            one.data_ptr(),
            other.data_ptr(),
            DTYPE_NUMBERS[one.dtype],
            *one.shape,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def _norm(norm: RmsNorm) -> NormStruct:
    return NormStruct(norm.weight.data_ptr(), norm.epsilon, int(norm.round_first))
