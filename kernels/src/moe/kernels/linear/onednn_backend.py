"""oneDNN with a weight in its own layout, through the operators that torch's compiler uses for it.

The weight is packed for a batch of at least four, and calls of fewer rows are filled up to four: oneDNN's kernels for
one row are slower than those for four (848 against 626 µs for an FFN of 4096 x 1024 and 1024 x 2048 on one AVX-512
thread).
"""

import torch
from moe.kernels.dtypes import dtype_name
from moe.kernels.quantised import QuantisedWeight, Weight
from torch import Tensor

_LEAST_ROWS = 4


def unavailable() -> str | None:
    """Why it can't run at all here; a dtype that this processor lacks is refused when it is packed."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch was built without oneDNN"
    return None


def unsupported(dtype: torch.dtype) -> str | None:
    """Why it can't run with weights of a dtype here."""
    if dtype == torch.float32:
        return None
    if dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    if dtype == torch.float16 and torch.ops.mkldnn._is_mkldnn_fp16_supported():
        return None
    return f"oneDNN has no {dtype_name(dtype)} on this processor"


class OneDnnLinear:
    """As moe.kernels.linear.PackedLinear, in the weight's dtype. Raises ValueError for a dtype it can't run here."""

    def __init__(self, weight: Weight, bias: Tensor | None) -> None:
        if isinstance(weight, QuantisedWeight):
            raise ValueError("linear: back end 'onednn' takes no quantised weight; take 'native' or 'torch'")
        why = unsupported(weight.dtype)
        if why is not None:
            raise ValueError(f"linear: {why}; take another back end")
        self._dtype = weight.dtype
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _LEAST_ROWS)
        self._bytes = weight.nbytes
        self._bias = None if bias is None else bias.to(weight.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of the weight; oneDNN's layout may add a little padding."""
        return self._bytes

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] to [n, out], in the rows' dtype."""
        count, given = len(rows), rows.to(self._dtype).contiguous()
        if count == 0:
            return rows.new_empty(0, self._weight.shape[0])
        if count < _LEAST_ROWS:
            given = torch.cat([given, given.new_zeros(_LEAST_ROWS - count, given.shape[1])])
        out: Tensor = torch.ops.mkldnn._linear_pointwise(given, self._weight, self._bias, "none", [], "")
        return out[:count].to(rows.dtype)
