"""Layer calls over toy experts, and what they must add up to, worked out token by token."""

import itertools
import time
from collections.abc import Sequence

import torch
from moe.wire.port import LayerCall, MissingPolicy, Part
from torch import Tensor

HIDDEN = 8
_numbers = itertools.count(1)


def toy_weight(expert: int) -> Tensor:
    """An expert's matrix [hidden, hidden]; another for each expert."""
    return torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(1000 + expert))


def toy_ffn(rows: Tensor, expert: int) -> Tensor:
    """What a toy expert computes."""
    return torch.tanh(rows @ toy_weight(expert))


def toy_partial(rows: Tensor, slot_rows: Tensor, slot_experts: Tensor, slot_weights: Tensor) -> Tensor:
    """A group's weighted sum over its slots."""
    sums = torch.zeros_like(rows)
    for row, expert, weight in zip(slot_rows.tolist(), slot_experts.tolist(), slot_weights.tolist(), strict=True):
        sums[row] += weight * toy_ffn(rows[row : row + 1], expert)[0]
    return sums


def toy_call(
    groups: Sequence[Sequence[int]],
    *,
    tokens: int = 6,
    topk: int = 2,
    layer: int = 0,
    seconds: float = 20.0,
    policy: MissingPolicy = MissingPolicy.WAIT,
    seed: int = 0,
) -> LayerCall:
    """A call whose tokens go to `topk` random experts each. groups: the experts of each part."""
    generator = torch.Generator().manual_seed(seed)
    experts = sorted(expert for group in groups for expert in group)
    hidden = torch.randn(tokens, HIDDEN, generator=generator)
    chosen = [torch.randperm(len(experts), generator=generator)[:topk].tolist() for _ in range(tokens)]
    weights = torch.rand(tokens, topk, generator=generator).tolist()
    parts = tuple(
        part
        for number, group in enumerate(groups)
        if (part := _part(number, set(group), [[experts[i] for i in row] for row in chosen], weights)) is not None
    )
    deadline = time.monotonic() + seconds
    return LayerCall((7 << 32) | next(_numbers), layer, hidden, parts, policy, deadline)


def _part(number: int, group: set[int], chosen: list[list[int]], weights: list[list[float]]) -> Part | None:
    slots = [
        (token, expert, weight)
        for token, (experts, shares) in enumerate(zip(chosen, weights, strict=True))
        for expert, weight in zip(experts, shares, strict=True)
        if expert in group
    ]
    if not slots:
        return None
    tokens = sorted({token for token, _, _ in slots})
    return Part(
        part=number,
        token_index=torch.tensor(tokens, dtype=torch.int32),
        slot_rows=torch.tensor([tokens.index(token) for token, _, _ in slots], dtype=torch.int32),
        slot_experts=torch.tensor([expert for _, expert, _ in slots], dtype=torch.int32),
        slot_weights=torch.tensor([weight for _, _, weight in slots]),
    )


def expected_rows(call: LayerCall, without: Sequence[int] = ()) -> Tensor:
    """The answer: every token's weighted experts, added in float64. without: parts that are left out."""
    sums = torch.zeros(call.hidden.shape, dtype=torch.float64)
    for part in call.parts:
        if part.part in without:
            continue
        for row, expert, weight in zip(
            part.slot_rows.tolist(), part.slot_experts.tolist(), part.slot_weights.tolist(), strict=True
        ):
            token = int(part.token_index[row])
            sums[token] += weight * torch.tanh(call.hidden[token].double() @ toy_weight(expert).double())
    return sums.float()
