"""The attention seam: registers the function through which the library's attention modules reach packed attention.

The step's cache hands itself over as the keyword `packed` (see `StepCache.update`); without it the function is used
outside a step, which is an error. Under this name the library builds no masks.
"""

from typing import Any, Protocol

from torch import Tensor
from transformers import AttentionInterface

PACKED_ATTENTION = "moe_packed"
"""Name under which the library finds the function."""


class PackedAttention(Protocol):
    """What attends for a step."""

    def attend(self, layer: int, query: Tensor, *, scale: float, sinks: Tensor | None) -> Tensor:
        """Queries [1, query heads, rows, size] over the layer's cache; gives [1, rows, query heads, v]."""


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: PackedAttention,
    scaling: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The library's attention function; keys and values are in the cache already, visibility was surveyed."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return packed.attend(module.layer_idx, query, scale=scale, sinks=s_aux), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
