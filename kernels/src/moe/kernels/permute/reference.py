"""The grouping written out with a dictionary."""

import torch
from moe.kernels.permute.groups import SlotGroups
from torch import Tensor


def group_slots(slot_experts: Tensor) -> SlotGroups:
    """As moe.kernels.permute.group_slots."""
    places: dict[int, list[int]] = {}
    for place, expert in enumerate(slot_experts.tolist()):
        places.setdefault(expert, []).append(place)
    experts = sorted(places)
    starts, order = [0], []
    for expert in experts:
        order += places[expert]
        starts.append(len(order))
    return SlotGroups(torch.tensor(order, dtype=torch.int64), tuple(experts), tuple(starts))
