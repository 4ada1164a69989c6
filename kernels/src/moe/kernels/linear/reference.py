"""The product written out, row by row, in float64."""

import torch
from moe.kernels.quantised import QuantisedWeight, Weight
from torch import Tensor


class ReferenceLinear:
    """As moe.kernels.linear.PackedLinear; rounds once, at the end."""

    def __init__(self, weight: Weight, bias: Tensor | None) -> None:
        self._weight = weight.dequantised(torch.float64) if isinstance(weight, QuantisedWeight) else weight.double()
        self._bias = None if bias is None else bias.double()

    @property
    def bytes(self) -> int:
        """Bytes of the widened weight."""
        return self._weight.nbytes

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] to [n, out], in the rows' dtype."""
        out = rows.new_empty(len(rows), len(self._weight))
        for i, row in enumerate(rows.double()):
            product = (self._weight * row).sum(dim=1)
            out[i] = product if self._bias is None else product + self._bias
        return out
