"""Decoder layers whose attention half is one native call, for rows that all go native.

Taken over are classes whose forward is: norm, attention, residual, norm, feed-forward, residual. Steps with padding or
outside of a step's cache go through the layer's own forward, operator by operator.
"""

from collections.abc import Callable
from typing import Any

from moe.kernels.attention.half_layer import HalfLayer
from moe.kernels.rms_norm import RmsNorm
from moe.models.backbone.native_gates import NativeGate
from moe.models.backbone.native_projection import PlainAttention
from moe.models.backbone.step_cache import StepCache
from torch import Tensor, nn

PLAIN_LAYERS = frozenset(
    {
        "Glm4MoeDecoderLayer",
        "GptOssDecoderLayer",
        "MixtralDecoderLayer",
        "OlmoeDecoderLayer",
        "Qwen2MoeDecoderLayer",
        "Qwen3MoeDecoderLayer",
    }
)
"""Classes of transformers whose forward was read and is that sequence."""

PLAIN_BLOCKS = frozenset({"MixtralSparseMoeBlock", "OlmoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock"})
"""Classes of transformers whose forward was read and is gate, experts and nothing else."""


def connect_layers(model: nn.Module) -> int:
    """Takes over the layers that can be, after attention and norms; how many they are."""
    connected = 0
    for module in model.modules():
        if type(module).__name__ not in PLAIN_LAYERS:
            continue
        parts = [_kernel(module, name) for name in ("input_layernorm", "self_attn", "post_attention_layernorm")]
        before, attention, after = parts
        if isinstance(before, RmsNorm) and isinstance(attention, PlainAttention) and isinstance(after, RmsNorm):
            half = HalfLayer(before, attention.projection, attention.output, after)
            _replace(module, PlainLayer(module, half, attention))
            connected += 1
    return connected


def _kernel(module: Any, name: str) -> object:
    return getattr(getattr(module, name).forward, "__self__", None)


def _replace(module: Any, taken: "PlainLayer") -> None:
    module.forward = taken.forward


class PlainBlock:
    """Rows [n, hidden] through a gate and its experts, without the modules around them."""

    def __init__(self, gate: NativeGate, experts: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        self._gate, self._experts = gate, experts

    def __call__(self, rows: Tensor) -> Tensor:
        """What the experts answer, [n, hidden]."""
        _, weights, index = self._gate.forward(rows)
        return self._experts(rows, index, weights)

    @staticmethod
    def of(block: Any) -> "PlainBlock | None":
        """None for a block of another class, or whose gate is not native."""
        if type(block).__name__ not in PLAIN_BLOCKS:
            return None
        gate = getattr(block.gate.forward, "__self__", None)
        return PlainBlock(gate, block.experts.moe_call) if isinstance(gate, NativeGate) else None


class PlainLayer:
    """The forward of one decoder layer."""

    def __init__(self, module: Any, half: HalfLayer, attention: PlainAttention) -> None:
        self._plain, self._feed_forward, self._block = module.forward, module.mlp, PlainBlock.of(module.mlp)
        self._half, self._attention = half, attention

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        cache: Any = None,
        **others: Any,
    ) -> Tensor:
        """As the layer's own."""
        attention = self._attention
        way = cache.native_way(attention.layer) if isinstance(cache, StepCache) else None
        if way is None or position_embeddings is None or position_embeddings[0].dtype != hidden_states.dtype:
            plain: Tensor = self._plain(hidden_states, position_embeddings=position_embeddings, cache=cache, **others)
            return plain
        kernel, ranges = way
        rotary = cache.rotary(*position_embeddings, halves=attention.halves)
        scale, sinks = attention.scale, attention.sinks
        residual, normed = self._half(kernel, hidden_states[0], rotary, ranges, scale=scale, sinks=sinks)
        if self._block is not None:
            return self._half.close(residual, self._block(normed))[None]
        made = self._feed_forward(normed[None])
        return self._half.close(residual, (made[0] if isinstance(made, tuple) else made)[0])[None]
