"""The experts callback of a backbone's step: a layer's rows go out as one layer call and come back combined."""

import math
from collections.abc import Callable, Mapping

import torch
from moe.router.accounting import SlotCounter
from moe.router.dispatch import plan_parts
from moe.router.layer_call import Abandoned, LayerCaller, Routing
from moe.router.ledger import StepLedger
from moe.runtime.errors import MoeError
from torch import Tensor


class RemoteExperts:
    """Implements moe.models.contract.Experts over the expert services. `begin` opens each step."""

    def __init__(self, caller: LayerCaller, moe_layers: Mapping[int, int], counter: SlotCounter) -> None:
        """moe_layers: decoder layer -> number of its experts."""
        self._caller = caller
        self._moe_layers = moe_layers
        self._counter = counter
        self._ledger: StepLedger | None = None
        self._abandoned: Callable[[], bool] = lambda: False

    def begin(self, ledger: StepLedger, abandoned: Callable[[], bool]) -> None:
        """Opens a step. abandoned: whether nobody waits for it any more."""
        self._ledger, self._abandoned = ledger, abandoned

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        """See moe.models.contract.Experts. Raises Abandoned when the rest of the step is for nobody."""
        return self.overlap(layer, hidden, index, weights, rows, None)

    def overlap(
        self,
        layer: int,
        hidden: Tensor,
        index: Tensor,
        weights: Tensor,
        rows: Tensor,
        meanwhile: Callable[[], None] | None,
    ) -> Tensor:
        """See moe.models.contract.OverlappingExperts. Raises Abandoned as a call does."""
        ledger = self._ledger
        if ledger is None:
            raise RuntimeError("experts were asked outside a step")
        if self._abandoned():
            raise Abandoned
        owners = ledger.owners[rows.numpy()]
        experts = self._moe_layers[layer]
        fleet = self._caller.fleet()
        self._counter.note(index.numpy(), owners, experts)
        result = None
        if not ledger.errors:
            routing = Routing(index, weights, experts)
            result = self._caller.run_routed(layer, hidden, routing, fleet, self._abandoned, meanwhile)
        if result is None:
            _lose_non_finite(ledger, layer, hidden, rows)
            parts = plan_parts(index, weights, fleet.part_of_expert, experts, ledger.keep(owners))
            if not parts:
                return torch.zeros_like(hidden)
            result = self._caller.run(layer, hidden, parts, fleet, self._abandoned, meanwhile)
        if result.troubles:
            ledger.apply(owners, result)
        return result.rows


def _lose_non_finite(ledger: StepLedger, layer: int, hidden: Tensor, rows: Tensor) -> None:
    """A NaN or infinity in one sequence's rows would have the whole part refused that it travels in."""
    if math.isfinite(hidden.sum().item()):  # one operation; an overflowing sum only costs the closer look
        return
    bad = ~torch.isfinite(hidden).all(dim=-1)
    if not bool(bad.any()):
        return
    error = MoeError(
        f"layer {layer}: the hidden states of this sequence are not finite; the model's weights or dtype can't carry it"
    )
    ledger.lose(ledger.owners[rows[bad].numpy()], error)
