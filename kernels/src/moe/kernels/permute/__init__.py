"""Sorts (row, expert) slots by expert, so that each expert's rows can go through it together: `group_slots`."""

from moe.kernels.permute import reference, torch_backend
from moe.kernels.permute.groups import SlotGroups
from moe.kernels.registry import AUTO, Registry
from torch import Tensor

backends = Registry("permute", "torch", {"reference": reference.group_slots, "torch": torch_backend.group_slots})


def group_slots(slot_experts: Tensor, *, backend: str = AUTO) -> SlotGroups:
    """Groups slots by expert, stably. slot_experts: integers [slots]. Raises ValueError for another shape or dtype."""
    if slot_experts.dim() != 1 or slot_experts.is_floating_point():
        raise ValueError(f"slot_experts: got {slot_experts.dtype} {list(slot_experts.shape)}, want integers [slots]")
    return backends.get(backend)(slot_experts)


__all__ = ["SlotGroups", "backends", "group_slots"]
