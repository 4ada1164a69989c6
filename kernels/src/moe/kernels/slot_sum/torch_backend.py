"""The weighted sum in torch: every row's first slot at once, then every second one, and so on.

A rank holds a row once at most, so that the order of addition is the order of ranks and nothing else. (index_add_ with
repeated rows leaves it to the library.)
"""

import torch
from torch import Tensor


def slot_sum(outputs: Tensor, slot_rows: Tensor, slot_weights: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """As moe.kernels.slot_sum.slot_sum."""
    # The product rounds to the promoted dtype of output and weight, as transformers' does; only the sum is wider.
    weighted = (outputs * slot_weights.unsqueeze(1)).to(torch.promote_types(outputs.dtype, torch.float32))
    places = torch.arange(len(slot_rows), dtype=slot_rows.dtype)
    if len(slot_rows) == rows and torch.equal(slot_rows, places):
        return weighted.to(dtype)
    rank = places - torch.searchsorted(slot_rows, slot_rows)
    return _by_rank(weighted, slot_rows, rank, rows).to(dtype)


def _by_rank(weighted: Tensor, slot_rows: Tensor, rank: Tensor, rows: int) -> Tensor:
    sums = weighted.new_zeros(rows, weighted.shape[1])
    if len(rank) == 0:
        return sums
    first = rank == 0
    sums.index_copy_(0, slot_rows[first].long(), weighted[first])
    for step in range(1, int(rank.max()) + 1):
        chosen = rank == step
        sums.index_add_(0, slot_rows[chosen].long(), weighted[chosen])
    return sums
