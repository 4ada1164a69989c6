"""The shared experts' seam: they are computed while the routed experts work elsewhere, not before or after.

A layer's shared expert sees the same rows as its routed ones, so its turn is free: it runs between sending the rows and
waiting for the answer. Families call it on either side of the routed experts. Where it comes first, its forward hands
out a tensor that is filled in later; where it comes last, its forward hands out what was computed already. Which one a
family is, and that it doesn't look into the tensor before it has asked the experts, was read in its source and
stands here by class; the shared experts of others run where they stand.
"""

from collections.abc import Callable
from typing import Any

import torch
from moe.models.seams.experts_discovery import find_experts
from torch import Tensor, nn

FIRST = {
    "Qwen2MoeSparseMoeBlock": "shared_expert",
    "Qwen3NextSparseMoeBlock": "shared_expert",
    "Qwen3_5MoeSparseMoeBlock": "shared_expert",
}
"""Blocks (or decoder layers) that call their shared expert, a child of this name, before the routed ones."""

LAST = {
    "DeepseekV2Moe": "shared_experts",
    "DeepseekV3MoE": "shared_experts",
    "Dots1MoE": "shared_experts",
    "Glm4MoeMoE": "shared_experts",
    "GraniteMoeSharedDecoderLayer": "shared_mlp",
}
"""Those that call it after them, with the same rows."""


class SharedExpert:
    """One layer's shared expert within a step. `begin` when its layer's routed experts are asked, then `compute`."""

    def __init__(self, module: Any, *, first: bool) -> None:
        self._forward: Callable[[Tensor], Tensor] = module.forward
        self._first = first
        self._input: Tensor | None = None
        self._output: Tensor | None = None
        self._pending = False
        module.forward = self._call

    def begin(self, hidden: Tensor) -> None:
        """The routed experts are about to be asked with these rows [n, hidden]."""
        if not self._first:
            self._input, self._output, self._pending = hidden, None, True

    def compute(self) -> None:
        """Computes what is due; nothing when that has been done."""
        if not self._pending or self._input is None:
            return
        self._pending = False
        result = self._forward(self._input)
        if self._first and self._output is not None:
            self._output.copy_(result)
            self._input = self._output = None
        else:
            self._output = result

    def clear(self) -> None:
        """Forgets what a step that failed has left."""
        self._input = self._output = None
        self._pending = False

    def _call(self, hidden_states: Tensor) -> Tensor:
        """The module's forward, as its family calls it."""
        if self._first:
            self._input, self._output, self._pending = hidden_states, torch.empty_like(hidden_states), True
            return self._output
        rows, output = self._input, self._output
        self.clear()
        if rows is None or output is None or not _same(rows, hidden_states):
            return self._forward(hidden_states)
        return output.view(hidden_states.shape)


def _same(rows: Tensor, hidden: Tensor) -> bool:
    """Whether both are the same rows in the same memory, whatever their leading shape."""
    return rows.data_ptr() == hidden.data_ptr() and rows.numel() == hidden.numel() and hidden.is_contiguous()


def connect_shared(model: nn.Module) -> dict[int, SharedExpert]:
    """Takes over the shared experts of the families that are known, by decoder layer."""
    found: dict[int, SharedExpert] = {}
    for layer, experts in find_experts(model).items():
        block = experts.name.rpartition(".")[0]
        for place in (block, block.rpartition(".")[0]):
            module: Any = model.get_submodule(place)
            kind = type(module).__name__
            shared = getattr(module, FIRST.get(kind) or LAST.get(kind) or "", None)
            if isinstance(shared, nn.Module):
                found[layer] = SharedExpert(shared, first=kind in FIRST)
                break
    return found
