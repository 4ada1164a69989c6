"""The experts seam: routed experts' modules ask a callback instead of computing.

Decorated families go through the library's own ExpertsInterface; Llama 4, which isn't decorated and scales the
expert's input instead of its output, through an adapter. Modules keep their place, but no parameters.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from moe.kernels.topk import topk
from moe.models.contract import Experts, OverlappingExperts
from moe.models.seams.errors import BackboneError, UnsupportedBackboneError
from moe.models.seams.experts_discovery import find_experts
from moe.models.seams.shared import SharedExpert
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface

REMOTE_EXPERTS = "moe_remote"
"""Name under which the library finds the function."""

SCALED_INPUT_BLOCKS = frozenset({"Llama4TextMoe"})
"""Undecorated blocks that the adapter knows: input scaled by the weight, experts in a child named `experts`."""


class StepRows(Protocol):
    """The rows of a step: `count` real ones, and int64 [count] 0, 1, 2 ... made once."""

    @property
    def count(self) -> int:
        """Rows that are not padding."""

    @property
    def indices(self) -> Tensor:
        """Each real row's row in the batch."""


def strip_experts(model: nn.Module) -> None:
    """Removes the experts' parameters (and children that hold some), so that loading never reads their tensors."""
    for experts in find_experts(model).values():
        module: Any = experts.module
        module._parameters.clear()
        for name, child in list(module.named_children()):
            if next(child.parameters(), None) is not None:
                del module._modules[name]
        # The library's initialisation of missing weights would look for the parameters.
        module._is_hf_initialized = True


@dataclass
class ExpertsSeam:
    """Carries one step's callback to the modules.

    outside: what to enter while the callback runs, inside: what while it lets the model compute something. dead:
    layer -> bool [experts + 1], slots that are dropped. keep: heaviest choices of a row that are asked, 0 for all.
    shared: layer -> the shared expert that runs meanwhile.
    """

    outside: Callable[[], AbstractContextManager[None]] = nullcontext
    inside: Callable[[], AbstractContextManager[None]] = nullcontext
    dead: dict[int, Tensor] = field(default_factory=dict)
    keep: int = 0
    shared: dict[int, SharedExpert] = field(default_factory=dict)
    _experts: Experts | None = None
    _overlapping: OverlappingExperts | None = None
    _rows: StepRows | None = None

    def begin(self, experts: Experts, rows: StepRows) -> None:
        """Opens a step."""
        self._experts, self._rows = experts, rows
        self._overlapping = experts if isinstance(experts, OverlappingExperts) else None

    def end(self) -> None:
        """Closes it, whatever happened."""
        self._experts = self._rows = self._overlapping = None
        for shared in self.shared.values():
            shared.clear()

    def call(self, layer: int, count: int, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """One layer's call: hidden [padded, hidden], index and weights [padded, k]; gives [padded, hidden]."""
        experts, rows = self._step()
        index, weights = self._kept(index, weights)
        shared = self.shared.get(layer)
        meanwhile = None
        if shared is not None:
            shared.begin(hidden)
            meanwhile = shared.compute
        if hidden.shape[0] == rows.count:
            return self._ask(experts, _Asked(layer, count, hidden, index, weights, rows.indices), meanwhile)
        real, index, weights = hidden[: rows.count], index[: rows.count], weights[: rows.count]
        result = self._ask(experts, _Asked(layer, count, real, index, weights, rows.indices), meanwhile)
        padded = torch.zeros_like(hidden)
        padded[: rows.count] = result
        return padded

    def call_scaled(
        self,
        layer: int,
        count: int,
        hidden: Tensor,
        index: Tensor,
        weights: Tensor,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """The same for families whose experts see weight * input: sends every row k times, with weight one.

        meanwhile: called once, while the rows are on their way.
        """
        experts, rows = self._step()
        index, weights = self._kept(index, weights)
        k = index.shape[1]
        real = hidden[: rows.count]
        scaled = (real[:, None] * weights[: rows.count, :, None]).flatten(0, 1)
        ones = torch.ones_like(scaled[:, :1])
        choice = index[: rows.count].reshape(-1, 1)
        sources = rows.indices if k == 1 else rows.indices.repeat_interleave(k)
        answers = self._ask(experts, _Asked(layer, count, scaled, choice, ones, sources), meanwhile)
        result = torch.zeros_like(hidden)
        result[: rows.count] = answers.view(rows.count, k, -1).sum(1) if k > 1 else answers
        return result

    def _kept(self, index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The heaviest `keep` choices of each row, in the order that they came in; of equal ones the first."""
        if not 0 < self.keep < index.shape[1]:
            return index, weights
        places = topk(weights, self.keep)[1].sort(dim=1).values
        return index.gather(1, places), weights.gather(1, places)

    def _step(self) -> tuple[Experts, StepRows]:
        if self._experts is None or self._rows is None:
            raise BackboneError("experts: asked outside a step")
        return self._experts, self._rows

    def _ask(self, experts: Experts, asked: "_Asked", meanwhile: Callable[[], None] | None) -> Tensor:
        layer, count, hidden = asked.layer, asked.count, asked.hidden
        index = asked.index.to(torch.int64)
        dead = self.dead.get(layer)
        if dead is not None:
            index = torch.where(dead[index.clamp_max(count)], count, index)
        inside = None if meanwhile is None else _Within(self.inside, meanwhile)
        with self.outside():
            if inside is None or self._overlapping is None:
                answer = experts(layer, hidden, index, asked.weights, asked.rows)
            else:
                answer = self._overlapping.overlap(layer, hidden, index, asked.weights, asked.rows, inside)
            if inside is not None and not inside.done:
                inside()
        if answer.shape != hidden.shape or answer.dtype != hidden.dtype:
            raise BackboneError(
                f"experts: layer {layer} answered {answer.dtype} {tuple(answer.shape)}; "
                f"want {hidden.dtype} {tuple(hidden.shape)}"
            )
        return answer


@dataclass(slots=True)
class _Asked:
    """What a layer's experts are asked; count: of its experts. See moe.models.contract.Experts."""

    layer: int
    count: int
    hidden: Tensor
    index: Tensor
    weights: Tensor
    rows: Tensor


class _Within:
    """Runs something once, inside a context. done: whether it has been begun."""

    def __init__(self, inside: Callable[[], AbstractContextManager[None]], meanwhile: Callable[[], None]) -> None:
        self._inside, self._meanwhile = inside, meanwhile
        self.done = False

    def __call__(self) -> None:
        self.done = True
        with self._inside():
            self._meanwhile()


def remote_experts(self: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """The library's experts function: [n, hidden], [n, k], [n, k] to [n, hidden]."""
    answer: Tensor = self.moe_call(hidden, index, weights)
    return answer


ExpertsInterface.register(REMOTE_EXPERTS, remote_experts)


def connect_experts(model: Any, seam: ExpertsSeam) -> dict[int, int]:
    """Makes the model's experts ask the seam; gives layer -> number of routed experts.

    Raises UnsupportedBackboneError for experts that neither way reaches.
    """
    found = find_experts(model)
    for layer, experts in found.items():
        module: Any = experts.module
        block: Any = model.get_submodule(experts.name.rpartition(".")[0])
        if experts.decorated:
            module.moe_call = _bound(seam.call, layer, experts.count)
        elif type(block).__name__ in SCALED_INPUT_BLOCKS:
            block.forward = _scaled_input_forward(block, _bound(seam.call_scaled, layer, experts.count))
        else:
            raise UnsupportedBackboneError(f"layer {layer}: {type(block).__name__} can't ask for its experts")
    if any(experts.decorated for experts in found.values()):
        model.set_experts_implementation(REMOTE_EXPERTS)
    return {layer: experts.count for layer, experts in found.items()}


def _bound(call: Callable[..., Tensor], layer: int, count: int) -> Callable[..., Tensor]:
    def bound(hidden: Tensor, index: Tensor, weights: Tensor, *meanwhile: Callable[[], None]) -> Tensor:
        return call(layer, count, hidden, index, weights, *meanwhile)

    return bound


def _scaled_input_forward(block: Any, call: Callable[..., Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Llama 4's block: its router's choice, and its shared expert while the routed ones work over the seam."""

    def forward(hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
        scores, logits = block.router(hidden)
        index = torch.topk(logits, block.top_k, dim=1)[1]
        shared: list[Tensor] = []
        routed = call(hidden, index, scores.gather(1, index), lambda: shared.append(block.shared_expert(hidden)))
        return shared[0] + routed, logits

    return forward
