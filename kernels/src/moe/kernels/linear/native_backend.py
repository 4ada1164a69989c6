"""The packed product of kernels/csrc: accumulated in float32 along `in` in one order, bias added, rounded once."""

import weakref
from ctypes import POINTER, byref, c_float, c_void_p, cast

import torch
from moe.kernels.dtypes import DTYPE_NUMBERS
from moe.kernels.native.library import library, variant_number
from moe.kernels.native.matrices import matrix_struct
from moe.kernels.quantised import Weight
from torch import Tensor


class NativeLinear:
    """As moe.kernels.linear.PackedLinear. variant: an instruction set in `native.variants()`, the best one for None.

    round_rows: as in matrix_struct; such products are exact on the rounded rows, on every processor.
    Works with as many threads as torch is set to. Raises NativeError when the library is not there or memory is short.
    """

    def __init__(
        self, weight: Weight, bias: Tensor | None, *, variant: str | None = None, round_rows: bool = False
    ) -> None:
        self._library, self._out, handle = library(), weight.shape[0], c_void_p()
        struct = matrix_struct(weight, round_rows=round_rows)
        wide = None if bias is None else bias.float().contiguous()
        pointer = None if wide is None else cast(wide.data_ptr(), POINTER(c_float))
        self._library.call("moe_linear_pack", variant_number(variant), byref(struct), pointer, byref(handle))
        self.handle = handle
        weakref.finalize(self, self._library.function("moe_linear_free"), handle)
        self.bytes = int(self._library.function("moe_linear_bytes")(handle))

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] to [n, out], in the rows' dtype."""
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        number, count = DTYPE_NUMBERS[rows.dtype], len(rows)
        out = torch.empty(count, self._out, dtype=rows.dtype)
        self._library.call(
            "moe_linear_run",
            self.handle,
            rows.data_ptr(),
            number,
            count,
            rows.stride(0),
            out.data_ptr(),
            number,
            self._out,
            torch.get_num_threads(),
        )
        return out
