"""The weighted sum in torch: every row's first slot at once, then every second one, and so on.

A rank holds a row once at most, so that the order of addition is the order of ranks and nothing else. (index_add_ with
repeated rows leaves it to the library.)
"""

import torch
from moe.kernels.slot_sum.order import check_order
from torch import Tensor


def slot_sum(outputs: Tensor, slot_rows: Tensor, slot_weights: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """As moe.kernels.slot_sum.slot_sum."""
    # The product rounds to the promoted dtype of output and weight, as transformers' does; only the sum is wider.
    weighted = (outputs * slot_weights.unsqueeze(1)).to(torch.promote_types(outputs.dtype, torch.float32))
    every, rest = divmod(len(slot_rows), max(rows, 1))
    # The usual case proves the order by itself; a few operations less count when caches are cold.
    if every and not rest and torch.equal(slot_rows, _uniform(slot_rows, rows, every)):
        return _sum_uniform(weighted, rows, every).to(dtype)
    check_order(slot_rows, rows)
    return _sum_ragged(weighted, slot_rows, rows).to(dtype)


def _uniform(slot_rows: Tensor, rows: int, every: int) -> Tensor:
    places = torch.arange(rows, dtype=slot_rows.dtype)
    return places if every == 1 else places.repeat_interleave(every)


def _sum_uniform(weighted: Tensor, rows: int, every: int) -> Tensor:
    """Every row has equally many slots."""
    first, *others = weighted.view(rows, every, -1).unbind(1)
    for other in others:
        first = first + other
    return first


def _sum_ragged(weighted: Tensor, slot_rows: Tensor, rows: int) -> Tensor:
    sums = weighted.new_zeros(rows, weighted.shape[1])
    bounds = torch.searchsorted(slot_rows, torch.arange(rows + 1, dtype=slot_rows.dtype))
    starts, counts = bounds[:-1], bounds.diff()
    for rank in range(int(counts.max()) if rows else 0):
        live = (counts > rank).nonzero().squeeze(1)
        chosen = weighted.index_select(0, starts[live] + rank)
        # The first is copied and not added to zero, which would turn -0.0 into 0.0.
        sums = sums.index_copy_(0, live, chosen) if rank == 0 else sums.index_add_(0, live, chosen)
    return sums
