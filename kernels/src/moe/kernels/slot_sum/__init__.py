"""An expert group's partial: each row's weighted sum over its slots (`slot_sum`)."""

import torch
from moe.kernels.registry import AUTO, Registry
from moe.kernels.slot_sum import reference, torch_backend
from torch import Tensor

backends = Registry("slot_sum", "torch", {"reference": reference.slot_sum, "torch": torch_backend.slot_sum})


def slot_sum(
    outputs: Tensor, slot_rows: Tensor, slot_weights: Tensor, rows: int, dtype: torch.dtype, *, backend: str = AUTO
) -> Tensor:
    """Sums weight * output over each row's slots, in slot order; returns [rows, hidden] in `dtype`.

    outputs [slots, hidden]: what the expert of each slot made of its row. slot_rows int32 or int64 [slots], not
    decreasing. slot_weights float [slots]. Products round as torch promotes their dtypes, sums are float32 (float64 for
    float64 outputs), rounded to `dtype` once. A row without slots is zero. Raises ValueError for shapes that don't fit.
    """
    slots = outputs.shape[0]
    if outputs.dim() != 2 or tuple(slot_rows.shape) != (slots,) or tuple(slot_weights.shape) != (slots,):
        shapes = f"{list(outputs.shape)}, {list(slot_rows.shape)} and {list(slot_weights.shape)}"
        raise ValueError(
            f"outputs, slot_rows and slot_weights: got {shapes}, want [slots, hidden], [slots] and [slots]"
        )
    return backends.get(backend)(outputs, slot_rows, slot_weights, rows, dtype)


__all__ = ["backends", "slot_sum"]
