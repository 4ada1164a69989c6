"""The gate seam: finds each layer's gate and lets its logits be changed before the family's own selection.

Scoring, grouping, normalising and scaling stay the family's: only the gate's first matrix product is intercepted.
Without patches a gate runs untouched.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from moe.models.seams.errors import BackboneError, UnsupportedBackboneError
from moe.models.seams.experts_discovery import find_experts
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

MASKED_LOGIT = -1e9
"""A dead expert's logit: finite, so that no family's arithmetic turns it into NaN; its softmax share is exactly 0."""

MASKED_BIAS = -1e4
"""A dead expert's bias where the choice is by sigmoid plus bias (DeepSeek-V3): beyond every live expert's score."""

GATE_NAMES = ("gate", "router")
"""What families call the gate beside their experts."""

FIXED_TOPK = frozenset({"PhimoeTopKRouter"})
"""Gates whose selection is written out for one top-k alone (PhiMoE's mixer takes exactly two)."""

GatePatch = Callable[[Tensor], Tensor]
"""Changes logits [rows, experts]; gives the same shape."""


@dataclass
class Gate:
    """A layer's gate. `patches` are applied to its logits in order, before the family's own selection.

    block: what the gate and its experts are in; some families' select there.
    """

    module: Any
    block: Any
    experts: int
    patches: list[GatePatch] = field(default_factory=list)
    _bias: Tensor | None = None

    @property
    def topk(self) -> int:
        """Experts per token."""
        return int(self.module.top_k)

    def take(self, topk: int) -> None:
        """Lets the family's own selection take so many."""
        self.module.top_k = topk
        if hasattr(self.block, "top_k"):
            self.block.top_k = topk

    def mask(self, ids: Sequence[int]) -> None:
        """Lowers the bias of dead experts where the family adds one to its scores; none restores it."""
        bias = getattr(self.module, "e_score_correction_bias", None)
        if not isinstance(bias, Tensor):
            return
        if self._bias is None:
            self._bias = bias.clone()
        bias.copy_(self._bias)
        bias[list(ids)] = MASKED_BIAS


class _FirstProduct(TorchFunctionMode):
    """Intercepts the first linear product inside a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate, self._done = gate, False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._done or func is not F.linear:
            return func(*args, **(kwargs or {}))
        self._done = True
        logits = func(*args, **(kwargs or {}))
        for patch in self._gate.patches:
            logits = patch(logits)
        return logits


def find_gates(model: nn.Module) -> dict[int, Gate]:
    """Each MoE layer's gate: the class that the library records router logits of, else by name beside the experts.

    Raises UnsupportedBackboneError where there is none.
    """
    recorded = _recorded_classes(model)
    gates = {}
    for layer, experts in find_experts(model).items():
        block = model.get_submodule(experts.name.rpartition(".")[0])
        gates[layer] = Gate(_gate_in(block, recorded, layer), block, experts.count)
    return gates


def _recorded_classes(model: nn.Module) -> tuple[type, ...]:
    found: list[type] = []
    for module in model.modules():
        recorder = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
        recorder = getattr(recorder, "target_class", recorder)
        if isinstance(recorder, type):
            found.append(recorder)
    return tuple(found)


def _gate_in(block: nn.Module, recorded: tuple[type, ...], layer: int) -> nn.Module:
    by_class = [child for child in block.children() if isinstance(child, recorded)]
    by_name = [child for name, child in block.named_children() if name in GATE_NAMES]
    for gate in (*by_class, *by_name):
        if hasattr(gate, "top_k"):
            return gate
    raise UnsupportedBackboneError(f"layer {layer}: {type(block).__name__} has no gate that can be found")


def connect_gates(gates: Mapping[int, Gate]) -> None:
    """Makes every gate run its patches."""
    for gate in gates.values():
        gate.module.forward = _patched(gate)


def _patched(gate: Gate) -> Callable[..., Any]:
    original = gate.module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not gate.patches:
            return original(*args, **kwargs)
        with _FirstProduct(gate):
            return original(*args, **kwargs)

    return forward


class TopK:
    """Changes how many experts the gates take; each layer's own number is remembered."""

    def __init__(self, gates: Mapping[int, Gate]) -> None:
        self._gates = gates
        self._own = {layer: gate.topk for layer, gate in gates.items()}

    def set(self, topk: int) -> None:
        """So many in every layer; 0: as the checkpoint has it. Raises BackboneError, and changes nothing then."""
        fewest = min(gate.experts for gate in self._gates.values())
        if not 0 <= topk <= fewest:
            raise BackboneError(f"top-k is {topk}; want 1 to {fewest}, the number of experts, or 0 for the model's own")
        for layer, gate in self._gates.items():
            kind, own = type(gate.module).__name__, self._own[layer]
            if topk not in (0, own) and kind in FIXED_TOPK:
                raise BackboneError(
                    f"top-k is {topk}; {kind} can't take other than {own} experts, but strategy drop can leave some out"
                )
        for layer, gate in self._gates.items():
            gate.take(topk or self._own[layer])

    def check_fewer(self, topk: int) -> None:
        """Raises BackboneError unless that leaves out some of what the gates take by themselves."""
        own = max(self._own.values())
        if not 0 < topk < own:
            raise BackboneError(f"strategy drop with top-k {topk} leaves nothing out; want 1 to {own - 1}")


class ExpertMask:
    """Keeps dead experts from being chosen, by layer; changes gates and tells which slots to drop."""

    def __init__(self, gates: Mapping[int, Gate]) -> None:
        self._gates = gates
        self._patches: dict[int, GatePatch] = {}

    def set(self, dead: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Masks exactly these experts (layer -> ids) and no others; gives layer -> bool [experts + 1] of dead slots.

        A dead expert that is chosen all the same, because too few are alive, has to be dropped by the caller.
        Raises BackboneError for an unknown layer or id.
        """
        for layer, ids in dead.items():
            self._check(layer, ids)
        for layer, patch in self._patches.items():
            self._gates[layer].patches.remove(patch)
            self._gates[layer].mask(())
        self._patches.clear()
        return {layer: self._mask(layer, ids) for layer, ids in dead.items() if ids}

    def _check(self, layer: int, ids: Sequence[int]) -> None:
        if layer not in self._gates:
            raise BackboneError(f"mask: layer {layer} has no routed experts; those that do: {sorted(self._gates)}")
        count = self._gates[layer].experts
        wrong = next((expert for expert in ids if not 0 <= expert < count), None)
        if wrong is not None:
            raise BackboneError(f"mask: layer {layer} has no expert {wrong}; ids go up to {count - 1}")

    def _mask(self, layer: int, ids: Sequence[int]) -> Tensor:
        gate = self._gates[layer]
        dead = torch.zeros(gate.experts + 1, dtype=torch.bool)
        dead[list(ids)] = True

        def patch(logits: Tensor) -> Tensor:
            return logits.masked_fill(dead[:-1], MASKED_LOGIT)

        gate.patches.append(patch)
        gate.mask(ids)
        self._patches[layer] = patch
        return dead
