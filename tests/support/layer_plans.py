"""Small layer-call plans and partials for tests of whatever combines them."""

import torch
from moe.wire.combining import CallKey, CallPlan, PlannedPart
from moe.wire.port import MissingPolicy
from torch import Tensor

KEY = CallKey(0xABC_0000_0001, 3)
HIDDEN = 2
TOUCHED = {0: [0, 1], 1: [1, 2], 2: [0, 2]}
"""Which of three tokens each of three parts touches; each weighs a half per token."""


def three_part_plan(
    policy: MissingPolicy = MissingPolicy.WAIT,
    *,
    key: CallKey = KEY,
    deadline: float | None = 100.0,
    dtype: torch.dtype = torch.float32,
    tokens: int = 3,
) -> CallPlan:
    """Three tokens, three parts, every token in two of them."""
    parts = tuple(
        PlannedPart(part, torch.tensor(index, dtype=torch.int32), torch.full((2,), 0.5))
        for part, index in TOUCHED.items()
    )
    return CallPlan(key, tokens, HIDDEN, dtype, policy, deadline, parts)


def partial(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The rows of one part of `three_part_plan`, all of one value."""
    return torch.full((2, HIDDEN), value, dtype=dtype)
