"""Attention modules whose projections, norms, angles and store are one native call instead of some thirty of torch's.

Only modules whose forward is that sequence and nothing else are taken over; the list names those that were read. They
call packed layers, so a module whose layers are left to torch keeps its own forward.
"""

from collections.abc import Mapping
from typing import Any

from moe.kernels.attention.projection import HeadNorms, Projection
from moe.kernels.linear import PackedLinear
from moe.kernels.rms_norm import RmsNorm
from moe.models.backbone.step_cache import StepCache
from torch import Tensor, nn

PLAIN_ATTENTION = frozenset(
    {
        "Glm4MoeAttention",
        "GptOssAttention",
        "GraniteMoeAttention",
        "MixtralAttention",
        "OlmoeAttention",
        "PhimoeAttention",
        "Qwen2MoeAttention",
        "Qwen3MoeAttention",
    }
)
"""Classes of transformers: query, key, value; norms of query and key, if any; rotary; attention; output."""

ONE_ANGLE_FOR_BOTH = frozenset({"GptOssAttention"})
"""Those whose rotary angles are not written twice."""


def connect_attention(model: nn.Module, packed: Mapping[nn.Module, PackedLinear]) -> int:
    """Takes over the attention modules that can be; how many they are. packed: layer -> its product."""
    connected = 0
    for module in model.modules():
        taken = _taken(module, packed)
        if taken is not None:
            _replace(module, taken)
            connected += 1
    return connected


def _replace(module: Any, taken: "PlainAttention") -> None:
    module.forward = taken.forward


def _taken(module: Any, packed: Mapping[nn.Module, PackedLinear]) -> "PlainAttention | None":
    if type(module).__name__ not in PLAIN_ATTENTION or getattr(module.config, "clip_qkv", None) is not None:
        return None
    qkv, output = packed.get(module.q_proj), packed.get(module.o_proj)
    if qkv is None or output is None or qkv.backend != "native" or output.backend != "native":
        return None
    heads = {name: getattr(module, name).out_features // module.head_dim for name in ("q_proj", "k_proj", "v_proj")}
    if heads["k_proj"] != heads["v_proj"] or qkv.out != sum(heads.values()) * module.head_dim:
        return None
    norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]
    known = _norms(norms)
    if any(norms) and known is None:
        return None
    projection = Projection(
        qkv, query_heads=heads["q_proj"], key_heads=heads["k_proj"], head_size=module.head_dim, norms=known
    )
    return PlainAttention(module, projection, output, heads["q_proj"])


def _norms(modules: list[Any]) -> HeadNorms | None:
    """The norms of query and key, where both are moe.kernels' already (see small_kernels)."""
    kernels = [getattr(getattr(module, "forward", None), "__self__", None) for module in modules]
    query, key = kernels
    if not isinstance(query, RmsNorm) or not isinstance(key, RmsNorm):
        return None
    if (query.epsilon, query.round_first) != (key.epsilon, key.round_first):
        return None
    return HeadNorms(query.weight, key.weight, query.epsilon, query.round_first)


class PlainAttention:
    """The forward of one attention module. scale, sinks: of its attention; halves: see Rotary."""

    def __init__(self, module: Any, projection: Projection, output: PackedLinear, query_heads: int) -> None:
        self._plain, self.layer = module.forward, int(module.layer_idx)
        self.projection, self.output = projection, output
        self._heads, self._size = query_heads, int(module.head_dim)
        self.scale, self.sinks = float(module.scaling), getattr(module, "sinks", None)
        self.halves = type(module).__name__ in ONE_ANGLE_FOR_BOTH

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """As the module's own, which goes on outside of steps, among padding, and where angles have another dtype."""
        kernel = cache.kernel(self.layer) if isinstance(cache, StepCache) else None
        if kernel is None or position_embeddings is None or position_embeddings[0].dtype != hidden_states.dtype:
            plain: tuple[Tensor, None] = self._plain(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                cache=cache,
                **others,
            )
            return plain
        rows = hidden_states[0]
        rotary = cache.rotary(*position_embeddings, halves=self.halves)
        made = self.projection(kernel, rows, rotary, cache.ranges(self.layer))
        query = made[:, : self._heads * self._size].view(-1, self._heads, self._size)
        mixed: Tensor = cache.attend_rows(self.layer, query, self.scale, self.sinks)
        return self.output(mixed.view(rows.shape[0], -1))[None], None
