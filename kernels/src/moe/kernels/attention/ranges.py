"""Which keys each row of an attention call sees."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeyRanges:
    """Row i sees tokens firsts[i] to ends[i] - 1 of slot slots[i]; int32 [n], contiguous. Made once for all layers."""

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

    @cached_property
    def slots_pointer(self) -> int:
        """Address of `slots`."""
        return self.slots.data_ptr()

    @cached_property
    def firsts_pointer(self) -> int:
        """Address of `firsts`."""
        return self.firsts.data_ptr()

    @cached_property
    def ends_pointer(self) -> int:
        """Address of `ends`."""
        return self.ends.data_ptr()

    def __len__(self) -> int:
        return int(self.slots.shape[0])
