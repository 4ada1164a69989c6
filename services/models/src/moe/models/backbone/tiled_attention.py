"""Deterministic attention: queries in tiles of a sequence's positions, over keys whose extent the tile alone fixes.

A tile is QUERY_TILE consecutive positions starting at a multiple of it. Its product shapes depend on nothing but that
start, so a query's bits are the same alone or in a batch, in one chunk or in many; positions of the tile that this
step doesn't compute are zero queries. It costs QUERY_TILE times the arithmetic of decoding's attention.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from moe.models.backbone.attend import attend
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.geometry import Visibility
from moe.models.backbone.latent import LatentProjection
from moe.models.backbone.segments import PackedRows
from moe.models.backbone.tiles import TILE, row_tiles
from torch import Tensor

QUERY_TILE = 8
"""Positions per tile; divides the rounding of the cache's slots, so that a tile never passes a slab's end."""


@dataclass(frozen=True)
class QueryTile:
    """Positions [start, start + QUERY_TILE) of a slot over its keys [low, start + QUERY_TILE)."""

    slot: int
    low: int
    high: int
    mask: Tensor


@dataclass(frozen=True)
class TilePlan:
    """A step's tiles. places: int64 [rows], for each row its place in the tiles laid out one after the other."""

    tiles: tuple[QueryTile, ...]
    places: Tensor


def plan_tiles(rows: PackedRows, visibility: Visibility) -> TilePlan:
    """Lays a step's rows out in tiles; masks are float32, 0 or -inf."""
    tiles: list[QueryTile] = []
    places: list[int] = []
    for segment in rows.segments:
        first = segment.start // QUERY_TILE * QUERY_TILE
        base = len(tiles) * QUERY_TILE - first
        places.extend(range(base + segment.start, base + segment.start + segment.count))
        starts = range(first, segment.start + segment.count, QUERY_TILE)
        tiles.extend(_tile(segment.slot, start, visibility) for start in starts)
    return TilePlan(tuple(tiles), torch.tensor(places))


def _tile(slot: int, start: int, visibility: Visibility) -> QueryTile:
    low, high = visibility.first(start), start + QUERY_TILE
    queries, keys = torch.arange(start, high), torch.arange(low, high)
    hidden = (keys > queries[:, None]) | (keys < visibility.firsts(queries)[:, None])
    return QueryTile(slot, low, high, torch.zeros(hidden.shape).masked_fill(hidden, float("-inf")))


def attend_tiled(
    plan: TilePlan, cache: SlotCache, layer: int, query: Tensor, *, scale: float, sinks: Tensor | None
) -> Tensor:
    """Attention of the step's real rows [rows, query heads, size]; gives [rows, query heads, v]."""
    keys, values = cache.keys[layer], cache.values[layer]
    laid = query.new_zeros(len(plan.tiles) * QUERY_TILE, *query.shape[1:])
    laid[plan.places] = query
    grouped = laid.view(len(plan.tiles), QUERY_TILE, keys.shape[1], -1, query.shape[-1]).permute(0, 2, 3, 1, 4)
    mixed = [
        attend(
            grouped[place : place + 1].contiguous(),
            keys[tile.slot : tile.slot + 1, :, tile.low : tile.high],
            values[tile.slot : tile.slot + 1, :, tile.low : tile.high],
            scale=scale,
            mask=tile.mask,
            sinks=sinks,
        )
        for place, tile in enumerate(plan.tiles)
    ]
    return torch.cat(mixed).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)[plan.places]


def attend_tiled_latent(
    plan: TilePlan, cache: SlotCache, layer: int, query: Tensor, projection: LatentProjection, *, scale: float
) -> Tensor:
    """Latent attention of the step's real rows, absorbed throughout; projections see TILE rows at a time."""
    latent = in_tiles(query, projection.absorb)
    mixed = attend_tiled(plan, cache, layer, latent, scale=scale, sinks=None)
    return in_tiles(mixed, projection.release)


def in_tiles(rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of rows [n, ...] computed TILE rows at a time."""
    flat = rows.flatten(1)
    tiles = [function(tile.view(TILE, *rows.shape[1:])) for tile in row_tiles(flat)]
    return torch.cat(tiles)[: rows.shape[0]]
