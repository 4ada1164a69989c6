"""The experts seam: routed experts' modules ask a callback instead of computing.

Decorated families go through the library's own ExpertsInterface; Llama 4, which isn't decorated and scales the
expert's input instead of its output, through an adapter. Modules keep their place, but no parameters.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from moe.models.seams.errors import BackboneError, UnsupportedBackboneError
from moe.models.contract import Experts
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface

REMOTE_EXPERTS = "moe_remote"
"""Name under which the library finds the function."""

SCALED_INPUT_BLOCKS = frozenset({"Llama4TextMoe"})
"""Undecorated blocks that the adapter knows: input scaled by the weight, experts in a child named `experts`."""

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class StepRows(Protocol):
    """The rows of a step: `count` real ones, and int64 [count] 0, 1, 2 ... made once."""

    @property
    def count(self) -> int:
        """Rows that are not padding."""

    @property
    def indices(self) -> Tensor:
        """Each real row's row in the batch."""


def find_experts(model: nn.Module) -> dict[int, nn.Module]:
    """The modules of routed experts by decoder layer.

    Raises UnsupportedBackboneError when a module belongs to no layer or a layer has two.
    """
    found: dict[int, nn.Module] = {}
    for name, module in model.named_modules():
        if type(module).__name__ in SCALED_INPUT_BLOCKS:
            module, name = module.experts, f"{name}.experts"
        elif not hasattr(module, "_is_expert_parallel"):
            continue
        layer = _LAYER.search(name)
        if layer is None:
            raise UnsupportedBackboneError(f"experts at {name} belong to no decoder layer")
        if found.setdefault(int(layer[1]), module) is not module:
            raise UnsupportedBackboneError(f"layer {layer[1]} has two sets of routed experts")
    return found


def expert_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Beginnings of the names of all experts' parameters."""
    modules = {id(module) for module in find_experts(model).values()}
    return tuple(f"{name}." for name, module in model.named_modules() if id(module) in modules)


def strip_experts(model: nn.Module) -> None:
    """Removes the experts' parameters (and children that hold some), so that loading never reads their tensors."""
    for module in find_experts(model).values():
        module._parameters.clear()
        for name, child in list(module.named_children()):
            if next(child.parameters(), None) is not None:
                del module._modules[name]
        # The library's initialisation of missing weights would look for the parameters.
        module._is_hf_initialized = True  # type: ignore[assignment]


@dataclass
class ExpertsSeam:
    """Carries one step's callback to the modules. dead: layer -> bool [experts + 1], slots that are dropped."""

    dead: dict[int, Tensor] = field(default_factory=dict)
    _experts: Experts | None = None
    _rows: StepRows | None = None

    def begin(self, experts: Experts, rows: StepRows) -> None:
        """Opens a step."""
        self._experts, self._rows = experts, rows

    def end(self) -> None:
        """Closes it, whatever happened."""
        self._experts = self._rows = None

    def call(self, layer: int, count: int, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """One layer's call: hidden [padded, hidden], index and weights [padded, k]; gives [padded, hidden]."""
        experts, rows = self._step()
        real = hidden[: rows.count]
        result = self._ask(experts, layer, count, real, index[: rows.count], weights[: rows.count], rows.indices)
        if hidden.shape[0] == rows.count:
            return result
        padded = torch.zeros_like(hidden)
        padded[: rows.count] = result
        return padded

    def call_scaled(self, layer: int, count: int, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """The same for families whose experts see weight * input: sends every row k times, with weight one."""
        experts, rows = self._step()
        k = index.shape[1]
        real = hidden[: rows.count]
        scaled = (real[:, None] * weights[: rows.count, :, None]).flatten(0, 1)
        ones = torch.ones_like(scaled[:, :1])
        asked = index[: rows.count].reshape(-1, 1)
        sources = rows.indices if k == 1 else rows.indices.repeat_interleave(k)
        answers = self._ask(experts, layer, count, scaled, asked, ones, sources)
        result = torch.zeros_like(hidden)
        result[: rows.count] = answers.view(rows.count, k, -1).sum(1) if k > 1 else answers
        return result

    def _step(self) -> tuple[Experts, StepRows]:
        if self._experts is None or self._rows is None:
            raise BackboneError("experts: asked outside a step")
        return self._experts, self._rows

    def _ask(
        self,
        experts: Experts,
        layer: int,
        count: int,
        hidden: Tensor,
        index: Tensor,
        weights: Tensor,
        rows: Tensor,
    ) -> Tensor:
        index = index.to(torch.int64)
        dead = self.dead.get(layer)
        if dead is not None:
            index = torch.where(dead[index.clamp_max(count)], count, index)
        answer = experts(layer, hidden, index, weights, rows)
        if answer.shape != hidden.shape or answer.dtype != hidden.dtype:
            raise BackboneError(
                f"experts: layer {layer} answered {answer.dtype} {tuple(answer.shape)}; "
                f"want {hidden.dtype} {tuple(hidden.shape)}"
            )
        return answer


def remote_experts(self: nn.Module, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """The library's experts function: [n, hidden], [n, k], [n, k] to [n, hidden]."""
    call: Callable[[Tensor, Tensor, Tensor], Tensor] = self.moe_call  # type: ignore[assignment]
    return call(hidden, index, weights)


ExpertsInterface.register(REMOTE_EXPERTS, remote_experts)


def connect_experts(model: Any, seam: ExpertsSeam) -> dict[int, int]:
    """Makes the model's experts ask the seam; gives layer -> number of routed experts."""
    counts: dict[int, int] = {}
    for layer, module in find_experts(model).items():
        counts[layer] = int(module.num_experts)
        if hasattr(module, "_is_expert_parallel"):
            module.moe_call = _bound(seam.call, layer, counts[layer])
    for name, block in model.named_modules():
        if type(block).__name__ in SCALED_INPUT_BLOCKS:
            layer = int(_LAYER.search(name)[1])  # type: ignore[index]
            block.forward = _scaled_input_forward(block, _bound(seam.call_scaled, layer, counts[layer]))
    if any(hasattr(module, "moe_call") for module in model.modules()):
        model.set_experts_implementation(REMOTE_EXPERTS)
    return counts


def _bound(call: Callable[..., Tensor], layer: int, count: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def bound(hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        return call(layer, count, hidden, index, weights)

    return bound


def _scaled_input_forward(
    block: nn.Module, call: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Llama 4's block: its router's choice, its shared expert, and the routed experts over the seam."""

    def forward(hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
        scores, logits = block.router(hidden)
        index = torch.topk(logits, block.top_k, dim=1)[1]  # type: ignore[arg-type]
        result = block.shared_expert(hidden) + call(hidden, index, scores.gather(1, index))
        return result, logits

    return forward
