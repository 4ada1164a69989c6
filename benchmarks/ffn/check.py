"""Whether a contestant computes the layer: a fast wrong answer must not stand in a table. Pure."""

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.ffn.shapes import Routing, Shape, weights

_BOUNDS = {4: 0.01, 2: 0.02, 1: 0.2}
"""Bytes a weight -> largest relative error: bfloat16 rows are rounded to 2^-9, and gate, product and sum add to that a
few times over; where rows are rounded to eight bits as well (fbgemm, w8a8), docs/performance.md has up to 11.7%."""


def expected(routing: Routing, shape: Shape) -> Tensor:
    """The layer in float32, an expert's slot after the other. float32 [tokens, hidden]."""
    up, down = weights(shape)
    rows, experts, shares = routing
    out = torch.zeros(rows.shape)
    for row in range(len(rows)):
        for expert, share in zip(experts[row].tolist(), shares[row].tolist(), strict=True):
            gate, linear = (up[expert].float() @ rows[row].float()).chunk(2)
            out[row] += share * (down[expert].float() @ (F.silu(gate) * linear))
    return out


def wrong(rows: Tensor, routing: Routing, shape: Shape, bytes_per_weight: int) -> str:
    """Empty when `rows` is the layer's output within what its precision explains, else how far off it is."""
    want = expected(routing, shape)
    error = float((rows.float() - want).norm() / want.norm())
    bound = _BOUNDS[bytes_per_weight]
    return "" if error <= bound else f"it computes something else: relative error {error:.3g}, want {bound} at most"
