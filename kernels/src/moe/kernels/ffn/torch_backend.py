"""The expert in torch, rounding step by step as transformers' `grouped_mm_experts_forward` does (5.24).

Projection, bias, activation and the projection down each round to the weights' dtype; the routing weight is
applied by the caller afterwards. With `tile_rows` the rows go through in tiles of that many, the last one padded with
zeros: libraries choose kernels by the shape of a call, so only a fixed shape makes a row's bits independent of its
company.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from moe.kernels.ffn.spec import ExpertWeights, FfnSpec
from moe.kernels.tiles import tile_product
from torch import Tensor

Curve = Callable[[Tensor], Tensor]
Elementwise = Callable[[Curve, Tensor], Tensor]
Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class _Arithmetic:
    """How products and curves are computed: over whole tensors, or so that a row's bits are its own."""

    product: Product
    elementwise: Elementwise


_CURVES: dict[str, Curve] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: torch.square(F.relu(x)),
}


def ffn(rows: Tensor, weights: ExpertWeights, spec: FfnSpec, *, tile_rows: int | None = None) -> Tensor:
    """Rows [n, hidden], any float dtype, through one expert; returns [n, hidden] in the weights' dtype."""
    rows = rows.to(weights.up.dtype)
    if tile_rows is None:
        return _forward(rows, weights, spec, _WHOLE)
    out = rows.new_empty(rows.shape)
    # One buffer for all tiles, so that the alignment that BLAS may act on is the same for each of them.
    tile = rows.new_zeros(tile_rows, rows.shape[1])
    for start in range(0, len(rows), tile_rows):
        count = min(tile_rows, len(rows) - start)
        tile[:count] = rows[start : start + count]
        tile[count:] = 0
        out[start : start + count] = _forward(tile, weights, spec, _TILED)[:count]
    return out


def _forward(rows: Tensor, weights: ExpertWeights, spec: FfnSpec, arithmetic: _Arithmetic) -> Tensor:
    # The bias is added after the product has been rounded, as transformers does, not inside the product.
    up = arithmetic.product(rows, weights.up)
    if weights.up_bias is not None:
        up += weights.up_bias
    down = arithmetic.product(_activate(up, spec, arithmetic.elementwise), weights.down)
    if weights.down_bias is not None:
        down += weights.down_bias
    return down


def _activate(up: Tensor, spec: FfnSpec, elementwise: Elementwise) -> Tensor:
    if not spec.gated:
        return elementwise(_CURVES[spec.activation], up)
    gate, linear = up.chunk(2, dim=-1)
    if spec.activation == "clamped_swiglu":
        return _clamped_swiglu(gate, linear, spec, elementwise)
    return elementwise(_CURVES[spec.activation], gate) * linear


def _clamped_swiglu(gate: Tensor, linear: Tensor, spec: FfnSpec, elementwise: Elementwise) -> Tensor:
    assert spec.limit is not None
    assert spec.alpha is not None
    gate = gate.clamp(max=spec.limit)
    linear = linear.clamp(min=-spec.limit, max=spec.limit)
    return (linear + 1) * (gate * elementwise(torch.sigmoid, gate * spec.alpha))


def _whole(curve: Curve, values: Tensor) -> Tensor:
    return curve(values)


def _by_row(curve: Curve, values: Tensor) -> Tensor:
    # torch's vectorised loops finish an odd tail with scalar code that rounds differently (seen with silu, gelu_tanh),
    # so an element's bits depend on where it lies in the call; by row, that is its column.
    return torch.stack([curve(row) for row in values.unbind(0)])


_WHOLE = _Arithmetic(F.linear, _whole)
_TILED = _Arithmetic(tile_product, _by_row)
