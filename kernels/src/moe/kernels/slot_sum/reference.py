"""The weighted sum written out, slot after slot."""

import torch
from moe.kernels.slot_sum.order import check_order
from torch import Tensor


def slot_sum(outputs: Tensor, slot_rows: Tensor, slot_weights: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """As moe.kernels.slot_sum.slot_sum."""
    check_order(slot_rows, rows)
    wide = torch.promote_types(outputs.dtype, torch.float32)
    sums: list[Tensor | None] = [None] * rows
    for slot, row in enumerate(slot_rows.tolist()):
        weighted = (outputs[slot] * slot_weights[slot : slot + 1]).to(wide)
        before = sums[row]
        sums[row] = weighted if before is None else before + weighted
    zero = torch.zeros(outputs.shape[1], dtype=wide)
    return torch.stack([zero if row is None else row for row in sums]).to(dtype) if rows else zero[None][:0].to(dtype)
