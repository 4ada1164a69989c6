"""Attention by moe.kernels: a row reads its keys in place, whatever its slot, and gets the same bits in any company.

Latent attention is absorbed (see `latent`) for whatever goes native. Its long prompt chunks go through the library's
fused attention instead, over keys that are expanded once for many rows; in deterministic mode all rows go one way.
"""

from dataclasses import dataclass

import torch
from moe.kernels.attention import KeyRanges
from moe.models.backbone.attention import Stretch, attend_stretch, stretch_of
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.geometry import AttentionLayer
from moe.models.backbone.latent import LatentProjection
from moe.models.backbone.segments import PackedRows
from moe.models.backbone.tiled_attention import in_tiles
from torch import Tensor

LONG_CHUNK = 16
"""Rows from which on a chunk over latents is attended to as one."""


@dataclass(frozen=True)
class NativePlan:
    """How one step's rows attend under one visibility.

    rows: int64, those that go native, None for all; ranges: their keys. stretches: chunks that go as one. tiled: latent
    projections see tiles of a fixed height.
    """

    rows: Tensor | None
    ranges: KeyRanges
    stretches: tuple[Stretch, ...]
    tiled: bool


def plan_native(rows: PackedRows, layer: AttentionLayer, *, deterministic: bool) -> NativePlan:
    """layer: one of those that attend so. In deterministic mode no chunk goes as one."""
    visibility = layer.visibility
    ranges = rows.ranges(visibility)
    long = [chunk for chunk in rows.chunks if chunk.count >= LONG_CHUNK] if layer.latent else []
    if deterministic or not long:
        return NativePlan(None, ranges, (), tiled=deterministic)
    short = torch.ones(rows.count, dtype=torch.bool)
    for chunk in long:
        short[chunk.row : chunk.row + chunk.count] = False
    left = short.nonzero().flatten()
    some = KeyRanges(ranges.slots[left], ranges.firsts[left], ranges.ends[left])
    return NativePlan(left, some, tuple(stretch_of(chunk, visibility, layer.dtype) for chunk in long), tiled=False)


def attend_native(
    plan: NativePlan,
    cache: SlotCache,
    layer: int,
    query: Tensor,
    latent: LatentProjection | None,
    *,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of the step's real rows [rows, query heads, size]; gives [rows, query heads, v].

    latent: the layer's up-projections, where it caches latents.
    """
    if plan.rows is None or latent is None:
        return _rows(plan, cache, layer, query, latent, scale, sinks)
    keys = cache.keys[layer]
    result = query.new_empty(*query.shape[:2], latent.value)
    if len(plan.rows):
        result[plan.rows] = _rows(plan, cache, layer, query[plan.rows], latent, scale, sinks)
    for stretch in plan.stretches:
        expanded = latent.expand(keys[stretch.chunk.slot, 0, stretch.low : stretch.high])
        result[stretch.rows] = attend_stretch(stretch, query[stretch.rows], *expanded, scale=scale, sinks=sinks)
    return result


def _rows(
    plan: NativePlan,
    cache: SlotCache,
    layer: int,
    query: Tensor,
    latent: LatentProjection | None,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    kernel = cache.attention[layer]
    if latent is None:
        return kernel(query, plan.ranges, scale=scale, sinks=sinks)
    absorb, release = latent.absorb, latent.release
    if plan.tiled:
        return in_tiles(kernel(in_tiles(query, absorb), plan.ranges, scale=scale), release)
    return release(kernel(absorb(query), plan.ranges, scale=scale))
