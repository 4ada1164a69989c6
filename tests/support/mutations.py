"""Faults of the kind that leave text sensible: wrappers of an experts callback, each wrong in one way."""

from collections.abc import Callable, Mapping

import torch
from moe.models.contract import Experts
from torch import Tensor

Mutate = Callable[[Experts, Mapping[int, int]], Experts]


def shifted_by_one(experts: Experts, counts: Mapping[int, int]) -> Experts:
    """Every row goes to the expert after the one that the gate chose."""

    def call(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        return experts(layer, hidden, (index + 1) % counts[layer], weights, rows)

    return call


def weights_not_applied(experts: Experts, counts: Mapping[int, int]) -> Experts:
    """All chosen experts count alike."""
    del counts

    def call(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        return experts(layer, hidden, index, weights.mean(-1, keepdim=True).expand_as(weights).contiguous(), rows)

    return call


def one_part_added_twice(experts: Experts, counts: Mapping[int, int]) -> Experts:
    """What experts of even ids answer counts double, as if their partial had been added again."""

    def call(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        again = torch.where(index % 2 == 0, index, counts[layer])
        return experts(layer, hidden, index, weights, rows) + experts(layer, hidden, again, weights, rows)

    return call


def one_part_left_out(experts: Experts, counts: Mapping[int, int]) -> Experts:
    """What experts of even ids answer is lost."""

    def call(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        return experts(layer, hidden, torch.where(index % 2 == 0, counts[layer], index), weights, rows)

    return call


MUTATIONS: dict[str, Mutate] = {
    "expert ids shifted": shifted_by_one,
    "weights not applied": weights_not_applied,
    "a part added twice": one_part_added_twice,
    "a part left out": one_part_left_out,
}
