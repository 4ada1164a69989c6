"""Multi-head latent attention (DeepSeek-V2, section 2.1.2) over a cache of latents.

Decoding absorbs the up-projections into query and result, so that a token costs no expansion of its whole past:
q . (Wk c) = (Wk^T q) . c, and sum of p (Wv c) = Wv (sum of p c). A chunk expands the latents it sees once instead,
which is cheaper for many queries. Both equal the library's formula but for rounding.
"""

from typing import Any

import torch
from moe.models.backbone.attention import Plan, attend_runs, attend_stretch
from moe.models.backbone.cache import SlotCache
from torch import Tensor
from torch.nn import functional


class LatentProjection:
    """The up-projections of one attention module, viewed per head."""

    def __init__(self, module: Any) -> None:
        self.plain = int(module.qk_nope_head_dim)
        self.value = int(module.v_head_dim)
        self.rank = int(module.kv_lora_rank)
        self.weight: Tensor = module.kv_b_proj.weight

    def _per_head(self) -> Tensor:
        return self.weight.view(-1, self.plain + self.value, self.rank)

    def absorb(self, query: Tensor) -> Tensor:
        """Queries [n, heads, plain + rotary] to latent space: [n, heads, rank + rotary]."""
        plain, rotary = torch.split(query, [self.plain, query.shape[-1] - self.plain], dim=-1)
        latent = torch.bmm(plain.transpose(0, 1), self._per_head()[:, : self.plain])
        return torch.cat((latent.transpose(0, 1), rotary), dim=-1)

    def release(self, mixed: Tensor) -> Tensor:
        """Mixed latents [n, heads, rank] to values: [n, heads, v]."""
        return torch.bmm(mixed.transpose(0, 1), self._per_head()[:, self.plain :].transpose(1, 2)).transpose(0, 1)

    def expand(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Cached latents [length, rank + rotary] to keys [1, heads, length, plain + rotary] and values."""
        latent, rotary = torch.split(latents, [self.rank, latents.shape[-1] - self.rank], dim=-1)
        both = functional.linear(latent, self.weight).view(latent.shape[0], -1, self.plain + self.value).transpose(0, 1)
        plain, values = torch.split(both, [self.plain, self.value], dim=-1)
        keys = torch.cat((plain, rotary.expand(plain.shape[0], -1, -1)), dim=-1)
        return keys[None], values[None]


def attend_latent(
    plan: Plan, cache: SlotCache, layer: int, query: Tensor, projection: LatentProjection, *, scale: float
) -> Tensor:
    """Attention of the step's queries [rows, heads, plain + rotary]; gives [rows, heads, v]."""
    result = query.new_empty(*query.shape[:2], projection.value)
    if plan.runs:
        latent = projection.absorb(query[plan.decoding])
        mixed = attend_runs(plan, cache.keys[layer], cache.values[layer], latent, scale=scale, sinks=None)
        result[plan.decoding] = projection.release(mixed)
    for stretch in plan.stretches:
        latents = cache.keys[layer][stretch.chunk.slot, 0, stretch.low : stretch.high]
        keys, values = projection.expand(latents)
        result[stretch.rows] = attend_stretch(stretch, query[stretch.rows], keys, values, scale=scale, sinks=None)
    return result
