"""Adds the weighted partials of a layer call: `combine(parts, tokens, hidden, dtype)`.

Parts are added in ascending order of their index, whatever the order they came in, in float32; so the result's bits
depend on the parts alone. Who is missing and what that means is decided by moe.aggregator.
"""

from collections.abc import Sequence

import torch
from moe.kernels.combine import reference, torch_backend
from moe.kernels.combine.parts import PartRows
from moe.kernels.registry import AUTO, Registry
from torch import Tensor

backends = Registry("combine", "torch", {"reference": reference.combine, "torch": torch_backend.combine})


def combine(
    parts: Sequence[PartRows],
    tokens: int,
    hidden: int,
    dtype: torch.dtype,
    *,
    scale: Tensor | None = None,
    backend: str = AUTO,
) -> Tensor:
    """The sum of all parts, [tokens, hidden] in `dtype`; tokens that no part touches are zero.

    scale: float32 [tokens], what each token's sum is multiplied by before it is rounded to `dtype` (see
    `renormalise_scale`). Raises ValueError naming the part whose index or shape does not fit.
    """
    ordered = sorted(parts, key=lambda part: part.part)
    for part in ordered:
        _check(part, tokens, hidden)
    if scale is not None and tuple(scale.shape) != (tokens,):
        raise ValueError(f"scale: got shape {list(scale.shape)}, want [{tokens}]")
    return backends.get(backend)(ordered, tokens, hidden, dtype, scale)


def renormalise_scale(total: Tensor, missing: Tensor) -> Tensor:
    """What makes the weights left sum to what all of them summed to: total / (total - missing), float32 [tokens].

    total, missing: float32 [tokens], sums of routing weights over all slots and over the missing ones. Where nothing is
    left the scale is 1: the row is zero and stays zero.
    """
    left = total.to(torch.float32) - missing.to(torch.float32)
    # A difference within float32's rounding of the sums is nothing left, not a weight to divide by.
    nothing = left <= total.abs() * 1e-6
    return torch.where(nothing, torch.ones_like(left), total / torch.where(nothing, torch.ones_like(left), left))


def _check(part: PartRows, tokens: int, hidden: int) -> None:
    index = part.token_index
    if index.dim() != 1 or tuple(part.rows.shape) != (len(index), hidden):
        shapes = f"index {list(index.shape)} and rows {list(part.rows.shape)}"
        raise ValueError(f"part {part.part}: got {shapes}, want [n] and [n, {hidden}]")
    if len(index) == 0:
        return
    if bool((index[1:] <= index[:-1]).any()) or int(index[0]) < 0 or int(index[-1]) >= tokens:
        raise ValueError(f"part {part.part}: token_index must rise strictly within 0 to {tokens - 1}")


__all__ = ["PartRows", "backends", "combine", "renormalise_scale"]
