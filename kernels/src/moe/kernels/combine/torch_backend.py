"""The combination in torch. Rows of one part are distinct, so an indexed addition has no order of its own."""

from collections.abc import Sequence

import torch
from moe.kernels.combine.parts import PartRows
from torch import Tensor


def combine(parts: Sequence[PartRows], tokens: int, hidden: int, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """As moe.kernels.combine.combine; parts come in ascending order."""
    sums = torch.zeros(tokens, hidden, dtype=torch.float32)
    for part in parts:
        _add(sums, part)
    if scale is not None:
        sums *= scale.to(torch.float32).unsqueeze(1)
    return sums.to(dtype)


def _add(sums: Tensor, part: PartRows) -> None:
    rows = part.rows.to(torch.float32)
    if len(part.token_index) == len(sums):  # strictly increasing, so it is every token in order
        sums += rows
    else:
        sums.index_add_(0, part.token_index, rows)
