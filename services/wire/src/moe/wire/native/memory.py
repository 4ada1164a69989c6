"""Tensors over memory that came through the wire."""

import torch
from moe_wire_native import Memory
from torch import Tensor


def tensor_of(memory: Memory) -> Tensor:
    """The tensor, over the memory itself: it is nobody else's and aligned to its elements."""
    if not len(memory):
        return torch.empty(memory.shape, dtype=memory.dtype)
    return torch.frombuffer(memory, dtype=memory.dtype).view(memory.shape)
