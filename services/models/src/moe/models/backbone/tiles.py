"""Matrix products in tiles of one fixed number of rows: the base of deterministic mode.

Libraries pick another kernel, hence another rounding, for another number of rows; with the same number a row's bits
depend neither on its place nor on its neighbours (measured: shared/prototypes/determinism). So every product sees
exactly TILE rows, the last tile filled up with zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TILE = 16
"""Rows per product. Sixteen is one AMX tile: bfloat16 products of fewer rows are hardly cheaper."""

ALIGNMENT = 64
"""Bytes. Some libraries round differently for operands that start inside a cache line."""


def padded_rows(rows: int) -> int:
    """Smallest positive multiple of TILE that holds `rows`."""
    return max(1, -(-rows // TILE)) * TILE


def row_tiles(rows: Tensor) -> tuple[Tensor, ...]:
    """Splits [n, width] into contiguous, aligned tiles [TILE, width], the last one padded with zeros."""
    missing = padded_rows(rows.shape[0]) - rows.shape[0]
    padded = F.pad(rows, (0, 0, 0, missing)) if missing else rows
    return tuple(_settled(tile) for tile in padded.split(TILE))


def _settled(tile: Tensor) -> Tensor:
    tile = tile.contiguous()
    return tile if tile.data_ptr() % ALIGNMENT == 0 else tile.clone()


def tiled_linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` for [..., width] with bits that depend on each row alone."""
    flat = rows.reshape(-1, rows.shape[-1])
    products = [F.linear(tile, weight, bias) for tile in row_tiles(flat)]
    result = products[0] if len(products) == 1 else torch.cat(products)
    return result[: flat.shape[0]].view(*rows.shape[:-1], weight.shape[0])


class TiledLinear(nn.Linear):
    """A linear layer that computes in tiles; made from an `nn.Linear` by `tile_linears`, never constructed."""

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return tiled_linear(rows, self.weight, self.bias)


def tile_linears(model: nn.Module) -> None:
    """Turns every plain linear layer of the model into a tiled one, in place.

    Subclasses with a forward of their own (gates) are left alone; the gate seam tiles their product.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = TiledLinear
