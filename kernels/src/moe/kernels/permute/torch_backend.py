"""The grouping by a stable sort."""

import torch
from moe.kernels.permute.groups import SlotGroups
from torch import Tensor


def group_slots(slot_experts: Tensor) -> SlotGroups:
    """As moe.kernels.permute.group_slots."""
    ids, order = torch.sort(slot_experts, stable=True)
    experts, counts = torch.unique_consecutive(ids, return_counts=True)
    starts = [0, *torch.cumsum(counts, 0).tolist()]
    return SlotGroups(order, tuple(experts.tolist()), tuple(starts))
