"""Root-mean-square norm of rows (Zhang and Sennrich, Root Mean Square Layer Normalization, section 3): `RmsNorm`.

Back ends: `reference` (torch's operators) and `native` (kernels/csrc). Both are batch-invariant: sums along a row.
"""

from collections.abc import Callable

import torch
from moe.kernels.dtypes import DTYPE_NUMBERS, float_number
from moe.kernels.native import unavailable as native_unavailable
from moe.kernels.native.library import library, variant_number
from moe.kernels.registry import AUTO, Registry
from torch import Tensor


class ReferenceNorm:
    """As RmsNorm, in torch."""

    def __init__(self, weight: Tensor, epsilon: float, round_first: bool) -> None:
        self._weight, self._epsilon, self._round_first = weight, epsilon, round_first

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, width] to [n, width]."""
        wide = rows.float()
        quotient = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._epsilon)
        if self._round_first:
            quotient = quotient.to(rows.dtype).float()
        return (quotient * self._weight).to(rows.dtype)


class NativeNorm:
    """As RmsNorm, by kernels/csrc."""

    def __init__(self, weight: Tensor, epsilon: float, round_first: bool, *, variant: str | None = None) -> None:
        self._library, self._variant = library(), variant_number(variant)
        self._weight, self._epsilon, self._round_first = weight, epsilon, int(round_first)
        self._pointer, self._width = weight.data_ptr(), weight.shape[0]

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, width] to [n, width]."""
        out = torch.empty(rows.shape, dtype=rows.dtype)
        self._library.call(
            "moe_rms_norm",
            self._variant,
            rows.data_ptr(),
            DTYPE_NUMBERS[rows.dtype],
            rows.shape[0],
            rows.stride(0),
            self._width,
            self._pointer,
            self._epsilon,
            self._round_first,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


backends: Registry[Callable[[Tensor, float, bool], ReferenceNorm | NativeNorm]] = Registry(
    "rms_norm",
    ("native", "reference"),
    {"reference": ReferenceNorm, "native": NativeNorm},
    unavailable={"native": native_unavailable},
    batch_invariant=frozenset({"native", "reference"}),
)


class RmsNorm:
    """row / sqrt(mean(row^2) + epsilon) * weight, computed in float32.

    weight: floats [width], copied as float32. round_first: the quotient is rounded to the rows' dtype before it is
    multiplied, as Llama's norm does; the product is rounded in any case. Raises ValueError for what doesn't fit,
    UnknownBackendError, UnavailableBackendError.
    """

    def __init__(self, weight: Tensor, epsilon: float, *, round_first: bool, backend: str = AUTO) -> None:
        if weight.dim() != 1 or not weight.is_floating_point() or weight.device != torch.device("cpu"):
            raise ValueError(f"weight: got {weight.dtype} {list(weight.shape)} on {weight.device}, want floats [width]")
        self.backend = backends.resolve(backend)
        self.weight, self.epsilon, self.round_first = weight.detach().float().contiguous().clone(), epsilon, round_first
        self._width = weight.shape[0]
        self._norm = backends.get(self.backend)(self.weight, epsilon, round_first)

    def __call__(self, rows: Tensor) -> Tensor:
        """[..., width] to [..., width] in the rows' dtype. Raises ValueError for rows of another width or dtype."""
        if rows.dim() == 0 or rows.shape[-1] != self._width:
            raise ValueError(f"rows: got shape {list(rows.shape)}, want [..., {self._width}]")
        float_number(rows.dtype, "rows")
        flat = rows if rows.dim() == 2 else rows.reshape(-1, self._width)
        if flat.stride(1) != 1:
            flat = flat.contiguous()
        out = self._norm(flat)
        return out if rows.dim() == 2 else out.view(rows.shape)


__all__ = ["AUTO", "RmsNorm", "backends"]
