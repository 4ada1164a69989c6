"""What a group is packed from: an expert's float matrices, or its quantised ones."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from moe.kernels.ffn import ExpertWeights
from moe.kernels.quantised import QuantisedWeight
from torch import Tensor


@dataclass(frozen=True, eq=False)
class QuantisedExpert:
    """As ExpertWeights, with quantised matrices. dtype: what rows come in and each step rounds to."""

    up: QuantisedWeight
    down: QuantisedWeight
    dtype: torch.dtype
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    @property
    def hidden(self) -> int:
        """Columns of the rows that go in and come out."""
        return self.down.shape[0]

    @property
    def inner(self) -> int:
        """Columns between the activation and the projection down."""
        return self.down.shape[1]


Expert: TypeAlias = ExpertWeights | QuantisedExpert


def plain(expert: Expert, wide: torch.dtype | None = None) -> ExpertWeights:
    """An expert with float matrices, for back ends that know no others and for checks.

    A quantised one's matrices come as views of the right shape without content, unless `wide` is given: then they are
    dequantised in that dtype, and the biases go with them.
    """
    if isinstance(expert, ExpertWeights):
        return expert
    if wide is None:
        empty = torch.zeros(1, dtype=expert.dtype)
        up, down = (empty.expand(matrix.shape) for matrix in (expert.up, expert.down))
        return ExpertWeights(up, down, expert.up_bias, expert.down_bias)
    up, down = (matrix.dequantised(wide) for matrix in (expert.up, expert.down))
    biases = (None if bias is None else bias.to(wide) for bias in (expert.up_bias, expert.down_bias))
    return ExpertWeights(up, down, *biases)
