"""Sizes that are measured, their weights, and the routings of tokens to experts that calls are made with."""

from dataclasses import dataclass

import torch
from torch import Tensor

Routing = tuple[Tensor, Tensor, Tensor]
"""rows bfloat16 [tokens, hidden], experts int64 [tokens, topk], weights bfloat16 [tokens, topk]."""


@dataclass(frozen=True)
class Shape:
    """A layer's experts: gated, SiLU, all in one group. name: of whose kind they are."""

    name: str
    hidden: int
    inner: int
    experts: int
    topk: int

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        return 3 * self.hidden * self.inner

    def __str__(self) -> str:
        return f"hidden {self.hidden}, inner {self.inner}, {self.experts} experts, top {self.topk}"


SHAPES = {
    "moe": Shape("the issue's", 1024, 2048, 16, 2),
    "demo": Shape("the demo model's kind", 576, 128, 60, 4),
    "deepseek": Shape("DeepSeek-like", 2048, 1408, 64, 6),
}


def weights(shape: Shape) -> tuple[Tensor, Tensor]:
    """All experts' up [experts, 2 * inner, hidden] and down [experts, hidden, inner], bfloat16; always the same."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).mul_(sizes[-1] ** -0.5).bfloat16()

    return drawn(shape.experts, 2 * shape.inner, shape.hidden), drawn(shape.experts, shape.hidden, shape.inner)


def routings(shape: Shape, tokens: int, count: int = 16) -> list[Routing]:
    """Different routings of so many tokens, the same ones in every run."""
    generator = torch.Generator().manual_seed(tokens)
    drawn = []
    for _ in range(count):
        scores = torch.rand(tokens, shape.experts, generator=generator)
        weights, experts = scores.softmax(dim=-1).topk(shape.topk)
        drawn.append((torch.randn(tokens, shape.hidden, generator=generator).bfloat16(), experts, weights.bfloat16()))
    return drawn
