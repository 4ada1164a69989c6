"""The experts of a whole model, in this process: what a backbone's callback would get from expert services.

Decorated families run their own module through the library's `grouped_mm`; Llama 4, which has none, is computed
expert by expert from its own weights.
"""

from typing import Any

import torch
from moe.models.seams.experts_discovery import find_experts
from torch import Tensor
from transformers.integrations.moe import grouped_mm_experts_forward


class LocalExperts:
    """An `Experts` callback over a model's own experts.

    rowwise: one row at a time, so that a row's bits don't depend on its batch. `calls` records (layer, rows, index).
    """

    def __init__(self, model: Any, *, rowwise: bool = False) -> None:
        self._modules = {layer: experts.module for layer, experts in find_experts(model).items()}
        self._rowwise = rowwise
        self.calls: list[tuple[int, Tensor, Tensor]] = []

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        """As `moe.models.contract.Experts`."""
        self.calls.append((layer, rows.clone(), index.clone()))
        module = self._modules[layer]
        if not self._rowwise:
            return _compute(module, hidden, index, weights)
        parts = [
            _compute(module, *part) for part in zip(hidden.split(1), index.split(1), weights.split(1), strict=True)
        ]
        return torch.cat(parts)


def _compute(module: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    if not hasattr(module, "_is_expert_parallel"):
        return _concatenated(module, hidden, index, weights)
    module._is_expert_parallel = True  # so that slots of index >= num_experts contribute nothing
    result: Tensor = grouped_mm_experts_forward(module, hidden, index, weights)
    return result


def _concatenated(module: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Llama 4's experts: gate and up projection side by side, weights stored [expert, in, out]."""
    result = torch.zeros_like(hidden)
    for expert in range(module.num_experts):
        rows, places = torch.where(index == expert)
        gate, up = (hidden[rows] @ module.gate_up_proj[expert]).chunk(2, dim=-1)
        answer = (up * module.act_fn(gate)) @ module.down_proj[expert]
        result.index_add_(0, rows, answer * weights[rows, places, None])
    return result
