"""Which keys each row of an attention call sees."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeyRanges:
    """Row i sees tokens firsts[i] to ends[i] - 1 of slot slots[i]; int32 [n], contiguous. Made once, used by all layers."""

    slots: Tensor
    firsts: Tensor
    ends: Tensor

    def __post_init__(self) -> None:
        for name in ("slots", "firsts", "ends"):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype != torch.int32 or tensor.shape != self.slots.shape or tensor.dim() != 1:
                raise ValueError(f"{name}: got {tensor.dtype} {list(tensor.shape)}, want int32 [n], as many as slots")
            if not tensor.is_contiguous():
                raise ValueError(f"{name}: is not contiguous")

    def __len__(self) -> int:
        return int(self.slots.shape[0])
