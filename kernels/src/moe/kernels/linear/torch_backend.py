"""F.linear, in the weight's dtype; a quantised weight is kept in float32, as torch has no kernel for its form."""

import torch
import torch.nn.functional as F
from moe.kernels.quantised import QuantisedWeight, Weight
from torch import Tensor


class TorchLinear:
    """As moe.kernels.linear.PackedLinear. Keeps the given weight itself, no copy."""

    def __init__(self, weight: Weight, bias: Tensor | None) -> None:
        self._weight = weight.dequantised(torch.float32) if isinstance(weight, QuantisedWeight) else weight
        self._bias = None if bias is None else bias.to(self._weight.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of weight and bias."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] to [n, out], in the rows' dtype."""
        return F.linear(rows.to(self._weight.dtype), self._weight, self._bias).to(rows.dtype)
