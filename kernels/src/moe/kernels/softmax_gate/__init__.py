"""A gate that takes the k largest shares of a softmax over all experts, in one call of kernels/csrc.

Product, softmax, choice and normalisation as the families write them out in torch, with a defined order among equals.
Native alone; where it isn't built, callers go operator by operator.
"""

import torch
from moe.kernels.dtypes import float_number
from moe.kernels.linear import PackedLinear
from moe.kernels.linear.native_backend import NativeLinear
from moe.kernels.native.library import library
from torch import Tensor

Chosen = tuple[Tensor, Tensor, Tensor]
"""Logits [n, experts] in the rows' dtype, weights [n, k], ids int64 [n, k]; greatest weight first."""


class SoftmaxGate:
    """linear: a packed layer of back end `native` whose outputs are the experts. normalise: a row's weights are divided
    by their sum. Batch-invariant: a row's bits depend on the row alone.

    Raises ValueError for a layer of another back end.
    """

    def __init__(self, linear: PackedLinear, *, normalise: bool) -> None:
        layer = linear.layer
        if not isinstance(layer, NativeLinear):
            raise ValueError(f"linear: runs {linear.backend}, want native")
        self._layer, self._library = layer, library()
        self._experts, self._hidden, self._normalise = linear.out, linear.columns, int(normalise)

    def __call__(self, rows: Tensor, k: int, dtype: torch.dtype) -> Chosen:
        """Rows [n, hidden]; of equal shares the lowest id comes first, NaN above all. dtype: of the weights.

        Raises ValueError for a k outside 1 to experts, and for rows of another width or dtype.
        """
        if rows.dim() != 2 or rows.shape[1] != self._hidden:
            raise ValueError(f"rows: got shape {list(rows.shape)}, want [n, {self._hidden}]")
        if not 1 <= k <= self._experts:
            raise ValueError(f"k: got {k}, want 1 to {self._experts}")
        numbers = float_number(rows.dtype, "rows"), float_number(dtype, "weights")
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        n = rows.shape[0]
        logits, weights = torch.empty(n, self._experts, dtype=rows.dtype), torch.empty(n, k, dtype=dtype)
        index = torch.empty(n, k, dtype=torch.int64)
        self._library.call(
            "moe_gate",
            self._layer.handle,
            rows.data_ptr(),
            numbers[0],
            n,
            rows.stride(0),
            k,
            self._normalise,
            logits.data_ptr(),
            weights.data_ptr(),
            numbers[1],
            index.data_ptr(),
            torch.get_num_threads(),
        )
        return logits, weights, index


__all__ = ["Chosen", "SoftmaxGate"]
