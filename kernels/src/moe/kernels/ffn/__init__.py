"""The feed-forward network of one expert: `ffn(rows, weights, spec)`.

`reference` writes the formula out; `torch` is the fast back end on CPU. The caller picks rows, applies routing weights
and adds up (moe.kernels.permute, moe.kernels.combine).
"""

from moe.kernels.ffn import reference, torch_backend
from moe.kernels.ffn.spec import ACTIVATIONS, Activation, ExpertWeights, FfnSpec
from moe.kernels.registry import AUTO, Registry
from torch import Tensor

DEFAULT_TILE_ROWS = 16

backends = Registry("ffn", "torch", {"reference": reference.ffn, "torch": torch_backend.ffn})


def ffn(
    rows: Tensor, weights: ExpertWeights, spec: FfnSpec, *, backend: str = AUTO, tile_rows: int | None = None
) -> Tensor:
    """Rows [n, hidden] through one expert; returns [n, hidden] in the weights' dtype.

    backend: a name in `backends.names()`. tile_rows: rows in each fixed-shape call, the last padded with zeros, so that
    a row's bits don't depend on the others; None computes all rows in one call (faster). Raises ValueError for rows
    whose shape or dtype does not fit, UnknownBackendError for an unknown back end.
    """
    _check_rows(rows, weights)
    if tile_rows is not None and tile_rows < 1:
        raise ValueError(f"tile_rows: must be at least 1, got {tile_rows}")
    return backends.get(backend)(rows, weights, spec, tile_rows=tile_rows)


def _check_rows(rows: Tensor, weights: ExpertWeights) -> None:
    if rows.dim() != 2 or rows.shape[1] != weights.hidden:
        raise ValueError(f"rows: got shape {list(rows.shape)}, want [n, {weights.hidden}]")
    if not rows.is_floating_point():
        raise ValueError(f"rows: got dtype {rows.dtype}, want a floating one")


__all__ = [
    "ACTIVATIONS",
    "AUTO",
    "Activation",
    "DEFAULT_TILE_ROWS",
    "ExpertWeights",
    "FfnSpec",
    "backends",
    "ffn",
]
