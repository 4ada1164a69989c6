"""What each decoder layer keeps per sequence, and which earlier tokens it may look at.

Plain facts, found once by `survey` and read by the cache and by attention; nothing here computes a model.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

VisibilityKind = Literal["full", "window", "chunk"]


@dataclass(frozen=True)
class Visibility:
    """Which keys a query sees: those from `first(position)` up to itself.

    full: all. window: the last `size` tokens, itself included (sliding window). chunk: those of its own chunk of
    `size` positions (Llama 4).
    """

    kind: VisibilityKind = "full"
    size: int = 0

    def first(self, position: int) -> int:
        """Position of the first key that the query at `position` sees."""
        if self.kind == "window":
            return max(0, position - self.size + 1)
        return position // self.size * self.size if self.kind == "chunk" else 0

    def firsts(self, positions: Tensor) -> Tensor:
        """`first` for int64 [n] positions."""
        if self.kind == "window":
            return (positions - self.size + 1).clamp_min(0)
        if self.kind == "chunk":
            return positions // self.size * self.size
        return torch.zeros_like(positions)


@dataclass(frozen=True)
class AttentionLayer:
    """What an attention layer caches per token: keys [heads, key_size] and values [heads, value_size].

    groups: query heads that share one of them. latent: multi-head latent attention (DeepSeek-V2, section 2.1): one
    head, keys are the compressed latent of
    `value_size` followed by the rotary part; the values are the latent itself and are not stored twice.
    """

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    visibility: Visibility
    latent: bool = False
    groups: int = 1

    @property
    def bytes_per_token(self) -> int:
        """Cache bytes that one token takes in this layer."""
        sizes = self.key_size if self.latent else self.key_size + self.value_size
        return self.heads * sizes * self.dtype.itemsize


@dataclass(frozen=True)
class RecurrentLayer:
    """What a linear-attention layer keeps per sequence, whatever its length.

    convolution [channels, kernel] and state [heads, key size, value size] with their dtypes.
    """

    convolution: tuple[int, ...]
    convolution_dtype: torch.dtype
    state: tuple[int, ...]
    state_dtype: torch.dtype

    @property
    def bytes_per_slot(self) -> int:
        """Cache bytes that one sequence takes in this layer."""
        convolution = torch.Size(self.convolution).numel() * self.convolution_dtype.itemsize
        return convolution + torch.Size(self.state).numel() * self.state_dtype.itemsize


@dataclass(frozen=True)
class Geometry:
    """All layers' needs by layer index."""

    attention: dict[int, AttentionLayer]
    recurrent: dict[int, RecurrentLayer]

    @property
    def bytes_per_token(self) -> int:
        """Cache bytes per token over all layers."""
        return sum(layer.bytes_per_token for layer in self.attention.values())

    @property
    def bytes_per_slot(self) -> int:
        """Cache bytes per sequence over all layers, beside its tokens."""
        return sum(layer.bytes_per_slot for layer in self.recurrent.values())
