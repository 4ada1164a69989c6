"""Whether a plan or a part can be used: pure checks that answer with the reason why not.

Tensors come from outside, so nothing is taken for granted but their being tensors.
"""

import math
from itertools import pairwise

import torch
from moe.wire.combining import CallPlan, PlannedPart
from moe.wire.port import MissingPolicy
from moe.wire.settings import CombinerLimits
from torch import Tensor

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


def plan_fault(plan: CallPlan, limits: CombinerLimits) -> str | None:
    """What is wrong with a plan: the thing, the value and the bound; None for a good one."""
    if plan.tokens < 1 or plan.hidden < 1:
        return f"plan: tokens and hidden must be at least 1, got {plan.tokens} and {plan.hidden}"
    if plan.dtype not in FLOATS:
        return f"plan.dtype: got {_name(plan.dtype)}, want float32, bfloat16 or float16"
    size = plan.tokens * plan.hidden * plan.dtype.itemsize
    if size > limits.answer_bytes:
        return (
            f"plan: the answer [{plan.tokens}, {plan.hidden}] takes {size} bytes, the bound is {limits.answer_bytes};"
            " send fewer tokens in a layer call"
        )
    numbers = [part.part for part in plan.parts]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        return f"plan.parts: must ascend strictly by part, got {numbers}"
    return next((fault for part in plan.parts if (fault := _planned_part_fault(part, plan))), None)


def _planned_part_fault(part: PlannedPart, plan: CallPlan) -> str | None:
    index, weights, name = part.token_index, part.row_weights, f"plan.parts[part={part.part}]"
    if index.dtype != torch.int32 or index.dim() != 1 or len(index) == 0:
        return (
            f"{name}.token_index: got {_name(index.dtype)} {list(index.shape)}, want int32 [rows] with at least one row"
        )
    rising = bool((index[1:] > index[:-1]).all())
    if not rising or int(index[0]) < 0 or int(index[-1]) >= plan.tokens:
        return f"{name}.token_index: must rise strictly within 0 to {plan.tokens - 1}"
    if plan.policy is not MissingPolicy.RENORMALISE:
        return None
    if weights is None or weights.dtype != torch.float32 or weights.shape != index.shape:
        got = "none" if weights is None else f"{_name(weights.dtype)} {list(weights.shape)}"
        return f"{name}.row_weights: got {got}, want float32 [{len(index)}], which renormalise scales by"
    return None if bool(torch.isfinite(weights).all()) else f"{name}.row_weights: must be finite"


def part_fault(rows: Tensor, planned: PlannedPart, plan: CallPlan) -> str | None:
    """What is wrong with a partial that arrived for `planned`; None for a good one."""
    want = (len(planned.token_index), plan.hidden)
    if rows.dtype not in FLOATS:
        return f"dtype: got {_name(rows.dtype)}, want float32, bfloat16 or float16"
    if tuple(rows.shape) != want:
        return f"shape: got {list(rows.shape)}, want {list(want)}"
    return value_fault(rows, torch.finfo(torch.float32).max / len(plan.parts))


def value_fault(rows: Tensor, bound: float) -> str | None:
    """Whether all values are finite and at most `bound` in size, so that adding that many parts can't overflow."""
    low, high = (float(value) for value in torch.aminmax(rows))
    if math.isnan(low) or math.isnan(high):
        return "values: NaN among them"
    largest = max(-low, high)
    if math.isinf(largest):
        return "values: infinity among them"
    return None if largest <= bound else f"values: {largest:.3g} in size, beyond {bound:.3g}, would overflow the sum"


def same_plan(one: CallPlan, other: CallPlan) -> bool:
    """Whether two plans ask for the same, whatever their deadlines."""
    head = ("tokens", "hidden", "dtype", "policy")
    if any(getattr(one, name) != getattr(other, name) for name in head) or len(one.parts) != len(other.parts):
        return False
    return all(_same_part(a, b) for a, b in zip(one.parts, other.parts, strict=True))


def _same_part(one: PlannedPart, other: PlannedPart) -> bool:
    if one.part != other.part or not torch.equal(one.token_index, other.token_index):
        return False
    if one.row_weights is None or other.row_weights is None:
        return one.row_weights is other.row_weights
    return torch.equal(one.row_weights, other.row_weights)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
