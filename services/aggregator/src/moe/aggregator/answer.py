"""Turns an open call into its answer: the sum of what has come, scaled or not, and the list of what is missing."""

import torch
from moe.aggregator.open_call import OpenCall
from moe.kernels.combine import PartRows, combine, renormalise_scale
from moe.wire.port import MissingPolicy
from torch import Tensor


def answer_rows(call: OpenCall) -> Tensor:
    """The answer [tokens, hidden] in the plan's dtype.

    A part whose values overflow that dtype in the sum is taken out and given up, so that it shows among the missing:
    partials are bounded in size when they arrive, so this takes an answer in float16 or at the very end of a range.
    """
    rows = _sum(call)
    while call.rows and not bool(torch.isfinite(rows).all()):
        _take_out_largest(call, rows)
        rows = _sum(call)
    return rows


def _sum(call: OpenCall) -> Tensor:
    plan = call.plan
    parts = [PartRows(part, call.planned[part].token_index, rows) for part, rows in call.rows.items()]
    return combine(parts, plan.tokens, plan.hidden, plan.dtype, scale=_scale(call))


def _scale(call: OpenCall) -> Tensor | None:
    """What each token is multiplied by; None where nothing is missing or the policy leaves rows as they are."""
    if call.plan.policy is not MissingPolicy.RENORMALISE or len(call.rows) == len(call.planned):
        return None
    total = torch.zeros(call.plan.tokens, dtype=torch.float32)
    missing = torch.zeros_like(total)
    for number, part in call.planned.items():
        if part.row_weights is None:
            raise ValueError(f"part {number} has no row_weights to renormalise by")
        total.index_add_(0, part.token_index, part.row_weights)
        if number not in call.rows:
            missing.index_add_(0, part.token_index, part.row_weights)
    return renormalise_scale(total, missing)


def _take_out_largest(call: OpenCall, rows: Tensor) -> None:
    """Gives up the part with the largest value in the first row that overflowed."""
    token = int((~torch.isfinite(rows)).any(dim=1).nonzero()[0])
    sizes = {part: _size_at(call, part, token) for part in call.rows}
    largest = max(sizes, key=sizes.__getitem__)
    del call.rows[largest]
    call.given_up[largest] = (
        f"the sum overflows {call.plan.dtype} in row {token}, where this part has a value of size {sizes[largest]:.3g}"
    )


def _size_at(call: OpenCall, part: int, token: int) -> float:
    """The largest value of a part in one row of the answer; -1 where the part does not touch it."""
    at = (call.planned[part].token_index == token).nonzero()
    return float(call.rows[part][int(at[0])].abs().max()) if len(at) else -1.0
