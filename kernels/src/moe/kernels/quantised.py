"""A weight of signed bytes with a scale and an offset per output channel: W8A16's form of a matrix.

The value of element (o, i) is scale[o] * q[o, i] + offset[o]. An output is then
scale[o] * sum(x * q) + offset[o] * sum(x), so that bytes are widened in registers and nothing else is kept of the
matrix. With a group size, each group of that many inputs of a channel has a scale and an offset of its own: fewer
values share a range, so that steps are smaller, and an output is the sum of its groups' parts. W8A8 rounds the rows as
well, each to 255 even steps around zero: x is about scale * q, and sum(x * q) a sum of integers. Its error depends on
the rows and is measured by `moe quantize`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

GROUP_UNIT = 16
"""Group sizes are multiples of it, so that no step of a kernel has inputs of two (MOE_GROUP_UNIT of csrc/abi.h)."""


def check_group_size(group_size: int | None) -> None:
    """Raises ValueError unless it is None or can be the size of a group."""
    if group_size is not None and (group_size < GROUP_UNIT or group_size % GROUP_UNIT):
        raise ValueError(f"group_size: got {group_size}, want a multiple of {GROUP_UNIT}, or none for whole channels")


def scales_shape(shape: Sequence[int], group_size: int | None) -> tuple[int, ...]:
    """Of the scales and of the offsets of a matrix of shape [out, in]: [out], or [out, groups] with a group size."""
    out, columns = shape
    return (out,) if group_size is None else (out, -(-columns // group_size))


@dataclass(frozen=True, eq=False)
class QuantisedWeight:
    """q int8 [out, in]; scale and offset float32 [out]. Raises ValueError for other dtypes or shapes.

    group_size: inputs of a channel that share a scale and an offset, which are then [out, groups]; the last group has
    what is left. None for whole channels.
    """

    q: Tensor
    scale: Tensor
    offset: Tensor
    group_size: int | None = None

    def __post_init__(self) -> None:
        check_group_size(self.group_size)
        if self.q.dtype != torch.int8 or self.q.dim() != 2:
            raise ValueError(f"q: got {self.q.dtype} {list(self.q.shape)}, want int8 [out, in]")
        want = scales_shape(self.q.shape, self.group_size)
        for name in ("scale", "offset"):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype != torch.float32 or tuple(tensor.shape) != want:
                raise ValueError(f"{name}: got {tensor.dtype} {list(tensor.shape)}, want float32 {list(want)}")

    @property
    def shape(self) -> torch.Size:
        """[out, in]."""
        return self.q.shape

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """The matrix [out, in] in a float dtype, each element rounded once."""
        wide = self.q.double() * self.by_element(self.scale) + self.by_element(self.offset)
        return wide.to(dtype)

    def by_element(self, scales: Tensor) -> Tensor:
        """Scales or offsets, those of each element of the matrix: float64 [out, 1] or [out, in]."""
        if self.group_size is None:
            return scales.double()[:, None]
        size = min(self.group_size, self.shape[1])  # a group may be larger than the matrix
        return scales.double().repeat_interleave(size, dim=1)[:, : self.shape[1]]


Weight: TypeAlias = Tensor | QuantisedWeight


def weight_shape(weight: Weight) -> tuple[int, ...]:
    """[out, in] of a weight of either kind."""
    return tuple(weight.shape)


def weight_dtype(weight: Weight) -> torch.dtype:
    """int8 for a quantised one."""
    return weight.q.dtype if isinstance(weight, QuantisedWeight) else weight.dtype


def quantise(matrix: Tensor, group_size: int | None = None) -> QuantisedWeight:
    """The nearest quantised weight of a float matrix [out, in]: each channel's range, end to end, on 256 even steps.

    group_size: the range is that of so many inputs each; None for whole channels.
    Raises ValueError for values that are not finite and a group size that can't be.
    """
    check_group_size(group_size)
    if matrix.dim() != 2 or not matrix.is_floating_point():
        raise ValueError(f"matrix: got {matrix.dtype} {list(matrix.shape)}, want floats [out, in]")
    wide = matrix.double()
    if not bool(torch.isfinite(wide).all()):
        raise ValueError("matrix: holds values that are NaN or infinite")
    grouped = _in_groups(wide, group_size)
    low, high = grouped.amin(dim=2, keepdim=True), grouped.amax(dim=2, keepdim=True)
    scale = ((high - low) / 255).float()
    # -128 stands for the lowest value; a range of equal values has no steps and is its offset alone.
    offset = (low + 128 * scale.double()).float()
    offset = torch.where(scale == 0, low.float(), offset)
    steps = torch.where(scale == 0, 1.0, scale).double()
    q = ((grouped - offset.double()) / steps).round_().clamp_(-128, 127)
    shape = scales_shape(matrix.shape, group_size)
    bytes_ = q.to(torch.int8).flatten(1)[:, : matrix.shape[1]].contiguous()
    return QuantisedWeight(bytes_, scale.view(shape), offset.view(shape), group_size)


def _in_groups(wide: Tensor, group_size: int | None) -> Tensor:
    """[out, groups, size]; what the last group lacks is its last value over and over, which leaves its range alone."""
    out, columns = wide.shape
    size = columns if group_size is None else min(group_size, columns)  # a group may be larger than the matrix
    missing = -columns % size
    if missing:
        wide = torch.cat([wide, wide[:, -1:].expand(out, missing)], dim=1)
    return wide.view(out, -1, size)


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
    scaled = weight.q.double() * weight.by_element(weight.scale)
    offset = weight.by_element(weight.offset).expand(weight.shape)
    return (whole.double() @ scaled.T) * steps.double() + rows.double() @ offset.T
