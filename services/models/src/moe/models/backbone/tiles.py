"""Arithmetic whose bits depend on each row alone: the base of deterministic mode.

Libraries pick another kernel, hence another rounding, for another number of rows; with the same number a row's bits
depend neither on its place nor on its neighbours (measured: shared/prototypes/determinism). So every matrix product
sees exactly TILE rows, the last tile filled up with zeros.

Elementwise functions are no better: torch computes exp and its like in vectors as far as they go and the rest of a
tensor (or of a thread's share of it) one by one, with other last bits. So they run in pieces that are whole vectors.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from moe.kernels.tiles import tile_product
from torch import Tensor

TILE = 16
"""Rows per product. Sixteen is one AMX tile: bfloat16 products of fewer rows are hardly cheaper."""

ALIGNMENT = 64
"""Bytes. Some libraries round differently for operands that start inside a cache line."""

VECTOR = 64
"""Elements. A multiple of what torch's vector loops take at a time: two registers, at most 32 bfloat16 each."""

PIECE = 16384
"""Elements; less than what torch splits between threads (32,768), and a multiple of VECTOR."""


def padded_rows(rows: int) -> int:
    """Smallest positive multiple of TILE that holds `rows`."""
    return max(1, -(-rows // TILE)) * TILE


def row_tiles(rows: Tensor) -> tuple[Tensor, ...]:
    """Splits [n, width] into contiguous, aligned tiles [TILE, width], the last one padded with zeros."""
    missing = padded_rows(rows.shape[0]) - rows.shape[0]
    padded = F.pad(rows, (0, 0, 0, missing)) if missing else rows
    return tuple(_settled(tile) for tile in torch.split(padded, TILE))


def _settled(tile: Tensor) -> Tensor:
    tile = tile.contiguous()
    return tile if tile.data_ptr() % ALIGNMENT == 0 else tile.clone()


def tiled_linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` for [..., width] with bits that depend on each row alone."""
    flat = rows.reshape(-1, rows.shape[-1])
    products = [tile_product(tile, weight, bias) for tile in row_tiles(flat)]
    result = products[0] if len(products) == 1 else torch.cat(products)
    return result[: flat.shape[0]].view(*rows.shape[:-1], weight.shape[0])


def in_vectors(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """An elementwise function of a tensor of any shape, with bits that depend on each element alone."""
    flat = values.reshape(-1)
    missing = -flat.shape[0] % VECTOR
    padded = F.pad(flat, (0, missing)) if missing else flat
    pieces = [function(piece) for piece in torch.split(padded, PIECE)]
    result = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return result[: flat.shape[0]].view(values.shape)
