"""The expert's formula written out, in whatever dtype it is given; float64 is what others are checked against.

Formulas: SiLU (Elfwing et al., arXiv:1702.03118), GELU and its tanh form (Hendrycks and Gimpel, arXiv:1606.08415),
squared ReLU (So et al., arXiv:2109.08668), clamped SwiGLU (GptOssExperts in transformers 5.24).
"""

import math

import torch
from moe.kernels.ffn.spec import ExpertWeights, FfnSpec
from torch import Tensor


def ffn(rows: Tensor, weights: ExpertWeights, spec: FfnSpec, *, tile_rows: int | None = None) -> Tensor:
    """Rows [n, hidden] through one expert, one row after the other; returns [n, hidden]. Ignores tile_rows: a row is
    always computed alone."""
    return torch.stack([_row(row, weights, spec) for row in rows]) if len(rows) else rows.clone()


def _row(row: Tensor, weights: ExpertWeights, spec: FfnSpec) -> Tensor:
    up = (weights.up * row).sum(dim=1)
    if weights.up_bias is not None:
        up = up + weights.up_bias
    down = (weights.down * activation(up, spec)).sum(dim=1)
    return down if weights.down_bias is None else down + weights.down_bias


def activation(up: Tensor, spec: FfnSpec) -> Tensor:
    """What lies between the products: [..., inner] of [..., rows of the projection up]."""
    if not spec.gated:
        return _curve(up, spec.activation)
    gate, linear = up.chunk(2, dim=-1)
    if spec.activation != "clamped_swiglu":
        return _curve(gate, spec.activation) * linear
    gate, linear = gate.clamp(max=spec.limit), linear.clamp(-spec.limit, spec.limit)  # type: ignore[operator]
    return (linear + 1) * gate / (1 + torch.exp(-spec.alpha * gate))  # type: ignore[operator]


def _curve(x: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return x / (1 + torch.exp(-x))
    if activation == "gelu":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    if activation == "gelu_tanh":
        return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if activation == "relu2":
        return torch.where(x < 0, 0, x) ** 2
    raise ValueError(f"no curve for activation {activation!r}")
