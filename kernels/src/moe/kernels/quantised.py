"""A weight of signed bytes with a scale and an offset per output channel: W8A16's form of a matrix.

The value of element (o, i) is scale[o] * q[o, i] + offset[o]. An output is then
scale[o] * sum(x * q) + offset[o] * sum(x), so that bytes are widened in registers and nothing else is kept of the
matrix. W8A8 rounds the rows as well, each to 255 even steps around zero: x is about scale * q, and sum(x * q) a sum of
integers. Its error depends on the rows and is measured by `moe quantize`.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class QuantisedWeight:
    """q int8 [out, in]; scale and offset float32 [out]. Raises ValueError for other dtypes or shapes."""

    q: Tensor
    scale: Tensor
    offset: Tensor

    def __post_init__(self) -> None:
        if self.q.dtype != torch.int8 or self.q.dim() != 2:
            raise ValueError(f"q: got {self.q.dtype} {list(self.q.shape)}, want int8 [out, in]")
        for name in ("scale", "offset"):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype != torch.float32 or tuple(tensor.shape) != (len(self.q),):
                raise ValueError(f"{name}: got {tensor.dtype} {list(tensor.shape)}, want float32 [{len(self.q)}]")

    @property
    def shape(self) -> torch.Size:
        """[out, in]."""
        return self.q.shape

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """The matrix [out, in] in a float dtype, each element rounded once."""
        wide = self.q.double() * self.scale.double()[:, None] + self.offset.double()[:, None]
        return wide.to(dtype)


Weight: TypeAlias = Tensor | QuantisedWeight


def weight_shape(weight: Weight) -> tuple[int, ...]:
    """[out, in] of a weight of either kind."""
    return tuple(weight.shape)


def weight_dtype(weight: Weight) -> torch.dtype:
    """int8 for a quantised one."""
    return weight.q.dtype if isinstance(weight, QuantisedWeight) else weight.dtype


def quantise(matrix: Tensor) -> QuantisedWeight:
    """The nearest quantised weight of a float matrix [out, in]: each row's range, end to end, on 256 even steps.

    Raises ValueError for values that are not finite.
    """
    if matrix.dim() != 2 or not matrix.is_floating_point():
        raise ValueError(f"matrix: got {matrix.dtype} {list(matrix.shape)}, want floats [out, in]")
    wide = matrix.double()
    if not bool(torch.isfinite(wide).all()):
        raise ValueError("matrix: holds values that are NaN or infinite")
    low, high = wide.amin(dim=1), wide.amax(dim=1)
    scale = ((high - low) / 255).float()
    # -128 stands for the lowest value; a row of equal values has no range and is its offset alone.
    offset = (low + 128 * scale.double()).float()
    offset = torch.where(scale == 0, low.float(), offset)
    steps = torch.where(scale == 0, 1.0, scale).double()
    q = ((wide - offset.double()[:, None]) / steps[:, None]).round_().clamp_(-128, 127)
    return QuantisedWeight(q.to(torch.int8), scale, offset)


def round_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, in] on even steps: whole numbers from -127 to 127 (float32 [n, in]) and the steps (float32 [n, 1]).

    Half a step goes to the even one. Of a row with NaN or infinity the steps are NaN; one whose values are all below
    2^-125 counts as zeros.
    """
    wide = rows.float()
    greatest = wide.abs().amax(dim=1, keepdim=True) if wide.shape[1] else wide.new_zeros(len(wide), 1)
    finite = torch.isfinite(greatest)
    # Not `127 / greatest`, for which torch rounds a reciprocal first.
    inverse = torch.where(finite & (greatest >= 2.0**-125), torch.full_like(greatest, 127).div(greatest), 0.0)
    whole = torch.where(finite, wide, 0.0).mul(inverse).round_()
    return whole, torch.where(finite, greatest / 127, torch.nan)


def rounded_product(rows: Tensor, weight: QuantisedWeight) -> Tensor:
    """The product of W8A8 written out, float64 [n, out]. The offset meets the rows as they came."""
    whole, steps = round_rows(rows)
    products = (whole.double() @ weight.q.double().T) * steps.double() * weight.scale.double()
    return products + rows.double().sum(dim=1, keepdim=True) * weight.offset.double()
