"""A RouterWire in memory: experts and combiner are functions, faults are scripted, time is the test's clock.

Stands in for the network where a test needs faults that can't be caused at a chosen moment.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from moe.discovery.directory import NO_WISHES, AggregatorReplica, ExpertReplica, RoutingWishes, Snapshot
from moe.router.dispatch import plan_parts
from moe.wire.port import (
    AggregatorLost,
    CallFailed,
    Combined,
    FailureKind,
    Incomplete,
    LayerCall,
    MissingPart,
    MissingPolicy,
    Outcome,
    Part,
    PartFailure,
    RoutedCall,
    Target,
)
from torch import Tensor

Expert = Callable[[int, int, Tensor], Tensor]
"""(layer, expert, rows [n, hidden]) -> [n, hidden]."""

SILENT = "silent"
Fault = FailureKind | str


class ListedDirectory:
    """A directory that holds what the test last put in."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._wishes = NO_WISHES

    def current(self) -> Snapshot:
        return self._snapshot

    def wait_newer(self, version: int, timeout_s: float) -> Snapshot:
        return self._snapshot

    def wishes(self) -> RoutingWishes:
        return self._wishes

    def trouble(self) -> str:
        return ""

    def close(self) -> None:
        pass

    def wish(self, wishes: RoutingWishes) -> None:
        """From now on."""
        self._wishes = wishes

    def put(self, experts: Sequence[ExpertReplica], aggregators: Sequence[AggregatorReplica] = ()) -> None:
        """The next version."""
        self._snapshot = Snapshot(self._snapshot.version + 1, "m", tuple(experts), tuple(aggregators))


def listing(groups: Sequence[Sequence[int]], replicas: int = 1, aggregators: int = 1) -> Snapshot:
    """Groups g0, g1, ... at endpoints g0-0, g0-1, ...; aggregators at a0, a1, ...; all ready."""
    experts = [
        ExpertReplica(f"g{g}-{r}", f"g{g}", tuple(ids), f"g{g}-{r}", ready=True)
        for g, ids in enumerate(groups)
        for r in range(replicas)
    ]
    return Snapshot(
        1, "m", tuple(experts), tuple(AggregatorReplica(f"a{i}", f"a{i}", ready=True) for i in range(aggregators))
    )


@dataclass
class _Open:
    plan: dict[int, Part]
    rows: dict[int, Tensor] = field(default_factory=dict)
    given_up: dict[int, str] = field(default_factory=dict)


class RouterWireDouble:
    """See the module. faults: endpoint -> what it does with the next parts, one each; then it works.

    sent: (layer, part, endpoint) of every part sent, in order. routed: calls that it cut into parts itself.
    calls, used: id and aggregator of every plan.
    wait: called with the seconds to let pass.
    """

    name = "double"

    def __init__(self, expert: Expert, clock: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._expert = expert
        self._clock = clock
        self._wait = wait
        self._open: dict[int, _Open] = {}
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.lost_aggregators: dict[str | None, int] = defaultdict(int)
        self.rejection: str | None = None
        self.queued: dict[str, int] = {}
        self.sent: list[tuple[int, int, str]] = []
        self.routed = 0
        self.calls: list[int] = []
        self.used: list[str | None] = []
        self.abandoned: list[int] = []
        self.experts: tuple[str, ...] = ()
        self.aggregators: tuple[str, ...] = ()
        self.retry_after_s = 0.0
        self.before_exchange: Callable[[LayerCall], None] = lambda call: None

    def exchange(self, call: LayerCall, targets: Sequence[Target], aggregator: str | None, until: float) -> Outcome:
        self.before_exchange(call)
        if call.call_id not in self._open:
            self.calls.append(call.call_id)
            self.used.append(aggregator)
            self._open[call.call_id] = _Open({part.part: part for part in call.parts})
        if self.lost_aggregators[aggregator] > 0:
            self.lost_aggregators[aggregator] -= 1
            del self._open[call.call_id]
            return AggregatorLost(f"{aggregator} is gone")
        if self.rejection is not None:
            return CallFailed(self.rejection, deadline=False)
        return self._news(call, [f for target in targets if (f := self._send(call, target)) is not None], until)

    def _news(self, call: LayerCall, failures: list[PartFailure], until: float) -> Outcome:
        if self._settled(call):
            return self._combined(call)
        if failures:
            return Incomplete(tuple(failures))
        self._wait(max(0.0, min(until, call.deadline) - self._clock()))
        return self._combined(call) if self._clock() >= call.deadline else Incomplete()

    def exchange_routed(self, call: RoutedCall, until: float) -> Outcome | None:
        table = np.array(call.places.part_of_expert, dtype=np.int32)
        parts = plan_parts(call.index, call.weights, table, call.experts)
        if not parts or not bool(torch.isfinite(call.hidden).all()):
            return None
        self.routed += 1
        targets = [Target(part.part, call.places.endpoints[part.part]) for part in parts]
        return self.exchange(replace(call.without_parts(), parts=parts), targets, call.aggregator, until)

    def give_up(self, call: LayerCall, part: int, reason: str) -> None:
        self._open[call.call_id].given_up[part] = reason

    def abandon(self, call: LayerCall) -> None:
        self.abandoned.append(call.call_id)
        self._open.pop(call.call_id, None)

    def queued_rows(self, endpoint: str) -> int:
        return self.queued.get(endpoint, 0)

    def set_endpoints(self, experts: Sequence[str], aggregators: Sequence[str]) -> None:
        self.experts, self.aggregators = tuple(experts), tuple(aggregators)

    def close(self) -> None:
        pass

    def _send(self, call: LayerCall, target: Target) -> PartFailure | None:
        self.sent.append((call.layer, target.part, target.endpoint))
        fault = self.faults[target.endpoint].pop(0) if self.faults[target.endpoint] else None
        if fault == SILENT:
            return None
        if isinstance(fault, FailureKind):
            return PartFailure(target.part, target.endpoint, fault, f"scripted {fault.value}", self.retry_after_s)
        opened = self._open[call.call_id]
        opened.rows[target.part] = self._partial(call, opened.plan[target.part])
        return None

    def _partial(self, call: LayerCall, part: Part) -> Tensor:
        hidden = call.hidden[part.token_index.long()]
        rows = torch.zeros_like(hidden)
        for row, expert, weight in zip(
            part.slot_rows.tolist(), part.slot_experts.tolist(), part.slot_weights.tolist(), strict=True
        ):
            rows[row] += weight * self._expert(call.layer, expert, hidden[row : row + 1])[0]
        return rows

    def _settled(self, call: LayerCall) -> bool:
        opened = self._open[call.call_id]
        there = set(opened.rows)
        if call.policy is not MissingPolicy.WAIT:
            there |= set(opened.given_up)
        return there >= set(opened.plan)

    def _combined(self, call: LayerCall) -> Combined:
        opened = self._open.pop(call.call_id)
        answer = torch.zeros_like(call.hidden)
        missing = []
        for number, part in sorted(opened.plan.items()):
            if number in opened.rows:
                answer.index_add_(0, part.token_index.long(), opened.rows[number])
            else:
                reason = opened.given_up.get(number, "it did not come in time")
                missing.append(MissingPart(number, reason, len(part.token_index)))
        return Combined(answer, tuple(missing))
