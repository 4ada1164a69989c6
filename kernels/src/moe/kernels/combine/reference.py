"""The combination written out, row by row, in Python floats rounded to float32 after each addition."""

from collections.abc import Sequence

import torch
from moe.kernels.combine.parts import PartRows
from torch import Tensor


def combine(parts: Sequence[PartRows], tokens: int, hidden: int, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """As moe.kernels.combine.combine; parts come in ascending order."""
    sums = [torch.zeros(hidden, dtype=torch.float32) for _ in range(tokens)]
    for part in parts:
        for row, token in enumerate(part.token_index.tolist()):
            sums[token] = sums[token] + part.rows[row].to(torch.float32)
    if scale is not None:
        sums = [row * scale[token] for token, row in enumerate(sums)]
    return torch.stack(sums).to(dtype) if tokens else torch.zeros(0, hidden, dtype=dtype)
