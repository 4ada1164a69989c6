"""Carries a layer call through: sends its parts, sends failed ones again, redoes it when the aggregator is lost.

The loop around moe.wire's RouterWire.exchange. It never raises for what the network does: a part that does not come
takes only the rows it touches, and says why. Where the wire can, a call first goes out whole (`run_routed`), and only
one that doesn't come back whole is looked at part by part.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from moe.discovery.directory import NO_WISHES, RoutingWishes
from moe.router.call_parts import PATIENT, CallParts, GivenUp
from moe.router.call_result import (
    CallFacts,
    LayerResult,
    RowTrouble,
    all_lost,
    combined_result,
    failed_result,
    overdue_result,
    without_parts,
)
from moe.router.dispatch import plan_parts
from moe.router.fleet import FleetTracker
from moe.router.groups import Fleet
from moe.router.hedging import Patience
from moe.router.places import PlaceFinder
from moe.router.replicas import Suspects
from moe.runtime.errors import Unavailable
from moe.wire.port import (
    AggregatorLost,
    CallFailed,
    Combined,
    Incomplete,
    LayerCall,
    MissingPolicy,
    Outcome,
    Part,
    RoutedCall,
    RoutedWire,
    RouterWire,
    Target,
)
from torch import Tensor

logger = logging.getLogger("moe.router")

_POLL_S = 0.2
"""How often a wait looks up: whether anybody still waits, and for replicas that came."""

_GRACE_S = 2.0
"""How long after its deadline a call's answer, with the parts it does without, may be under way."""

_FIRST_DELAY_S = 0.02
_LONGEST_DELAY_S = 0.5
_SUSPECT_S = 2.0
_LONGEST_SUSPECT_S = 30.0


@dataclass(frozen=True)
class CallSettings:
    """How layer calls are made. timeout_s: for a whole call, redone or not. embedded: the combiner is in here.

    seat: which of several aggregators is taken first; routers with different numbers share them out.
    hedge_after_s: silence after which a part goes to another replica too, 0 to derive it from what calls take.
    """

    policy: MissingPolicy
    timeout_s: float
    embedded: bool = False
    seat: int = 0
    partial_dtype: torch.dtype | None = None
    hedge_after_s: float = 0.0


def wished(started_with: CallSettings, wishes: RoutingWishes) -> CallSettings:
    """The settings with what is wished now in place of what the router was started with. Raises ValueError."""
    policy, timeout_s, hedge_after_s = wishes.missing_policy, wishes.layer_timeout_s, wishes.hedge_after_s
    return replace(
        started_with,
        policy=started_with.policy if policy is None else MissingPolicy(policy),
        timeout_s=started_with.timeout_s if timeout_s is None else timeout_s,
        hedge_after_s=started_with.hedge_after_s if hedge_after_s is None else hedge_after_s,
    )


@dataclass
class CallCounters:
    """Since the start."""

    retried_parts: int = 0
    redone_calls: int = 0
    hedged_parts: int = 0


@dataclass
class _OpenCall:
    """A call between its first exchange and its end, at one aggregator."""

    call: LayerCall
    groups: dict[int, str]
    parts: CallParts
    timeout_s: float
    began: float
    begun: bool = False
    given_up: list[GivenUp] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)

    def take(self, given_up: Sequence[GivenUp]) -> None:
        """Notes parts that nobody delivers."""
        for part in given_up:
            if part.invalid:
                self.refused[part.part] = part.reason
            else:
                self.given_up.append(part)

    def facts(self) -> CallFacts:
        last = {part.part: self.parts.last_failure(part.part) for part in self.call.parts}
        return CallFacts(self.call, self.groups, last, self.timeout_s)


@dataclass(frozen=True)
class Routing:
    """Where a layer's rows go. index int64 [tokens, k]; weights [tokens, k]; experts: ids from this on are dropped."""

    index: Tensor
    weights: Tensor
    experts: int


@dataclass(frozen=True)
class _Begun:
    """A call that was sent whole, and what came of it so far."""

    opened: _OpenCall
    aggregator: str | None
    outcome: Outcome


@dataclass(frozen=True)
class _Refused:
    """Parts that every replica calls malformed, with what they say: the call goes on without them."""

    facts: CallFacts
    parts: dict[int, str]


class Abandoned(Exception):  # noqa: N818 - not an error
    """Nobody waits for the layer call any more."""


class _Homeless(Exception):  # noqa: N818 - not an error
    """No aggregator came up in time."""


class LayerCaller:
    """Makes layer calls, one at a time, all from the engine's thread."""

    def __init__(
        self,
        wire: RouterWire,
        fleet: FleetTracker,
        settings: CallSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wire = wire
        self._routed = wire if isinstance(wire, RoutedWire) else None
        self._places = PlaceFinder()
        self._fleet = fleet
        self._started_with = self._settings = settings
        self._wishes = NO_WISHES
        self._clock = clock
        self._sleep = sleep
        self._suspects = Suspects(_SUSPECT_S, _LONGEST_SUSPECT_S)
        self._patience = Patience(settings.hedge_after_s)
        self._first_id = secrets.randbits(32) << 32
        self._turns = count(1)
        self._dialled: Fleet | None = None
        self.counters = CallCounters()

    def fleet(self) -> Fleet:
        """The fleet now. Tells the wire when it has changed."""
        fleet = self._fleet.current()
        if fleet is not self._dialled:
            self._dialled = fleet
            aggregators = [] if self._settings.embedded else [a.endpoint for a in fleet.snapshot.aggregators]
            self._wire.set_endpoints([replica.endpoint for replica in fleet.snapshot.experts], aggregators)
        return fleet

    def wishes(self) -> RoutingWishes:
        """What is wished of routing now; the same object as long as nothing has changed."""
        return self._fleet.wishes()

    @property
    def settings(self) -> CallSettings:
        """What calls are made with now."""
        self._heed()
        return self._settings

    def _heed(self) -> None:
        """Takes over what is wished now; a call that is under way ends as it began."""
        wishes = self._fleet.wishes()
        if wishes is self._wishes:
            return
        self._wishes, before = wishes, self._settings
        try:
            self._settings = wished(self._started_with, wishes)
        except ValueError as error:
            logger.error("wishes are not heeded, going on with %s: %s", before, error)
            return
        if self._settings.hedge_after_s != before.hedge_after_s:
            self._patience = Patience(self._settings.hedge_after_s)
        logger.info("layer calls from now on: %s", self._settings)

    def run(
        self,
        layer: int,
        hidden: Tensor,
        parts: Sequence[Part],
        fleet: Fleet,
        abandoned: Callable[[], bool],
        meanwhile: Callable[[], None] | None = None,
    ) -> LayerResult:
        """The layer's rows combined. fleet: the one that the parts were planned by.

        meanwhile: called at most once, as soon as parts are on their way; its errors pass through, and the call is
        abandoned. Raises Abandoned.
        """
        self._heed()
        deadline = self._clock() + self._settings.timeout_s
        policy, partial_dtype = self._settings.policy, self._settings.partial_dtype
        call = LayerCall(0, layer, hidden, tuple(parts), policy, deadline, partial_dtype)
        groups = {part.part: fleet.groups[part.part].name for part in parts}
        return self._through(call, groups, abandoned, meanwhile)

    def run_routed(
        self,
        layer: int,
        hidden: Tensor,
        routing: Routing,
        fleet: Fleet,
        abandoned: Callable[[], bool],
        meanwhile: Callable[[], None] | None = None,
    ) -> LayerResult | None:
        """As `run`, of all rows, where the wire cuts the routing into parts. Raises Abandoned.

        None when that can't be: another wire, a group or an aggregator that is not there, a row that is not finite, no
        slot left. Nothing is sent then, and `meanwhile` not called.
        """
        if self._routed is None:
            return None
        self._heed()
        began, settings = self._clock(), self._settings
        call_id, turn = self._next_id()
        places = self._places.find(fleet, self._wire.queued_rows, self._suspects.current(began), turn)
        aggregator = None if settings.embedded else self._own_aggregator(fleet)
        if places is None or (aggregator is None and not settings.embedded):
            return None
        deadline = began + settings.timeout_s
        call = RoutedCall(
            call_id,
            layer,
            hidden,
            routing.index,
            routing.weights,
            routing.experts,
            places,
            settings.policy,
            deadline,
            settings.partial_dtype,
            aggregator,
        )
        outcome = self._routed.exchange_routed(call, began if meanwhile else began + _POLL_S)
        if outcome is None:
            return None
        if meanwhile is not None:
            bare = call.without_parts()
            self._fill(bare, meanwhile)
            if outcome == Incomplete():
                outcome = self._wire.exchange(bare, (), aggregator, self._clock() + _POLL_S)
        if isinstance(outcome, Combined) and not outcome.missing:
            if fleet.replicated:  # else there is nobody to lose patience for
                self._patience.note(_groups_of(routing, fleet), self._clock() - began)
            return LayerResult(outcome.rows)
        begun = self._begun(call, turn, fleet, began, outcome)
        return self._through(begun.opened.call, begun.opened.groups, abandoned, None, begun)

    def _begun(self, routed: RoutedCall, turn: int, fleet: Fleet, began: float, outcome: Outcome) -> _Begun:
        """The call that was sent whole, part by part."""
        parts = plan_parts(routed.index, routed.weights, fleet.part_of_expert, routed.experts)
        call = replace(routed.without_parts(), parts=parts)
        groups = {part.part: fleet.groups[part.part].name for part in parts}
        states = CallParts(groups, call.policy, began, turn)
        states.sent(routed.places.endpoints, began)
        opened = _OpenCall(call, groups, states, self._settings.timeout_s, began, begun=True)
        return _Begun(opened, routed.aggregator, outcome)

    def _own_aggregator(self, fleet: Fleet) -> str | None:
        """The one that `_home` takes first; None when none is ready."""
        ready = fleet.aggregators
        return ready[self._settings.seat % len(ready)].endpoint if ready else None

    def _next_id(self) -> tuple[int, int]:
        turn = next(self._turns)
        return self._first_id | (turn & 0xFFFFFFFF), turn

    def _through(
        self,
        call: LayerCall,
        groups: dict[int, str],
        abandoned: Callable[[], bool],
        meanwhile: Callable[[], None] | None,
        begun: _Begun | None = None,
    ) -> LayerResult:
        """The call's lives, one after the other, until one ends well. begun: the first, when it has begun."""
        lost: Counter[str] = Counter()
        refused: tuple[RowTrouble, ...] = ()
        while True:
            if not call.parts:
                return LayerResult(torch.zeros_like(call.hidden), refused)
            if begun is not None:
                aggregator = begun.aggregator
                outcome = self._live(begun.opened, aggregator, abandoned, None, begun.outcome)
                begun = None
            else:
                try:
                    aggregator = self._home(call.deadline, lost, abandoned)
                except _Homeless:
                    return all_lost(call, self._no_aggregator(call.layer, lost))
                outcome = self._live(self._open(call, groups), aggregator, abandoned, meanwhile)
            meanwhile = None
            if isinstance(outcome, LayerResult):
                return replace(outcome, troubles=outcome.troubles + refused) if refused else outcome
            if isinstance(outcome, _Refused):
                call, troubles = without_parts(outcome.facts, outcome.parts)
                refused += troubles
            else:
                lost[aggregator or ""] += 1
                self.counters.redone_calls += 1

    def _open(self, call: LayerCall, groups: dict[int, str]) -> _OpenCall:
        """A new life of a call, under an id of its own."""
        (call_id, turn), began = self._next_id(), self._clock()
        call = LayerCall(call_id, call.layer, call.hidden, call.parts, call.policy, call.deadline, call.partial_dtype)
        parts = CallParts({part.part: groups[part.part] for part in call.parts}, call.policy, began, turn)
        return _OpenCall(call, groups, parts, self._settings.timeout_s, began)

    def _live(
        self,
        opened: _OpenCall,
        aggregator: str | None,
        abandoned: Callable[[], bool],
        meanwhile: Callable[[], None] | None,
        outcome: Outcome | None = None,
    ) -> LayerResult | AggregatorLost | _Refused:
        """One life of a call, at one aggregator. outcome: of its first exchange, when that is over."""
        call, parts = opened.call, opened.parts
        try:
            while True:
                if outcome is None:
                    outcome = self._exchange(opened, aggregator, only_send=meanwhile is not None)
                if meanwhile is not None:
                    self._fill(call, meanwhile)
                    meanwhile = None
                result = self._judge(opened, outcome)
                if result is not None:
                    if not (parts.retries or parts.hedged) and isinstance(outcome, Combined):
                        self._patience.note(opened.groups.values(), self._clock() - opened.began)
                    return result
                outcome = None
                if opened.refused:
                    self._wire.abandon(call)
                    return _Refused(opened.facts(), opened.refused)
                if abandoned():
                    self._wire.abandon(call)
                    raise Abandoned
        finally:
            self.counters.retried_parts += parts.retries
            self.counters.hedged_parts += parts.hedged

    def _fill(self, call: LayerCall, meanwhile: Callable[[], None]) -> None:
        try:
            meanwhile()
        except BaseException:
            self._wire.abandon(call)
            raise

    def _exchange(self, opened: _OpenCall, aggregator: str | None, *, only_send: bool = False) -> Outcome:
        """Sends what is due and waits for news, or until something else is due. only_send: doesn't wait.

        A part can only be given up after the first exchange, which carries the plan.
        """
        now = self._clock()
        until = now + _POLL_S
        targets: list[Target] = []
        if now < opened.call.deadline:
            fleet, suspects = self.fleet(), self._suspects.current(now)
            targets, given_up = opened.parts.due(fleet, self._wire.queued_rows, suspects, now)
            opened.take(given_up)
            if opened.refused:
                return Incomplete()
            if opened.begun:
                targets += self._hedge(opened.parts, fleet, suspects, now)
            until = min(until, opened.parts.next_send() or until)
        if opened.begun:
            self._give_up(opened)
        elif opened.given_up or only_send:
            until = now
        opened.begun = True
        return self._wire.exchange(opened.call, targets, aggregator, until)

    def _hedge(self, parts: CallParts, fleet: Fleet, suspects: Collection[str], now: float) -> list[Target]:
        """Parts that stay silent, for another replica each; who was silent is avoided for a while."""
        hedges = parts.hedges(fleet, self._wire.queued_rows, suspects, self._patience.seconds, now)
        for hedge in hedges:
            self._suspects.add(hedge.silent, now)
            logger.warning(
                "group %s: no answer with %s for %.1f s; its part goes to %s too",
                hedge.group,
                hedge.silent,
                hedge.waited_s,
                hedge.target.endpoint,
            )
        return [hedge.target for hedge in hedges]

    def _give_up(self, opened: _OpenCall) -> None:
        for part in opened.given_up:
            self._wire.give_up(opened.call, part.part, part.reason)
        opened.given_up.clear()

    def _judge(self, opened: _OpenCall, outcome: Outcome) -> LayerResult | AggregatorLost | None:
        """The end of the call, or None when it goes on."""
        if isinstance(outcome, Combined):
            if not outcome.missing:
                return LayerResult(outcome.rows)
            return combined_result(opened.facts(), outcome, self.fleet())
        if isinstance(outcome, CallFailed):
            return failed_result(opened.facts(), outcome)
        if isinstance(outcome, AggregatorLost):
            return outcome
        self._note(opened, outcome)
        if self._clock() < opened.call.deadline + _GRACE_S:
            return None
        self._wire.abandon(opened.call)
        return overdue_result(opened.facts())

    def _note(self, opened: _OpenCall, outcome: Incomplete) -> None:
        now = self._clock()
        for failure in outcome.failures:
            if failure.kind not in PATIENT:
                self._suspects.add(failure.endpoint, now)
            opened.parts.failed(failure, self.fleet(), now)

    def _home(self, deadline: float, lost: Counter[str], abandoned: Callable[[], bool]) -> str | None:
        """The endpoint of the aggregator lost least often, None for the one in here; waits longer after each loss.

        Of equals it is the router's own, by `seat`: layer after layer the same, whose stream is open.

        Raises _Homeless when none comes up by the deadline.
        """
        delay_s = min(_FIRST_DELAY_S * 2.0 ** min(lost.total(), 10), _LONGEST_DELAY_S)
        waited = not lost
        while True:
            if self._settings.embedded and waited:
                return None
            candidates = [a.endpoint for a in self.fleet().aggregators if waited or a.endpoint not in lost]
            if candidates:
                first = self._settings.seat % len(candidates)
                return min(candidates[first:] + candidates[:first], key=lambda endpoint: lost[endpoint])
            if self._clock() >= deadline:
                raise _Homeless
            if abandoned():
                raise Abandoned
            self._sleep(delay_s)
            waited = True

    def _no_aggregator(self, layer: int, lost: Counter[str]) -> Unavailable:
        tried = ", ".join(f"{endpoint} (lost {times} times)" for endpoint, times in lost.items()) or "none listed"
        return Unavailable(
            f"layer {layer}: no aggregator was ready within {self._settings.timeout_s:g} s (--layer-timeout-s); {tried}"
        )


def _groups_of(routing: Routing, fleet: Fleet) -> set[str]:
    """Names of the groups that have slots."""
    chosen = {expert for expert in routing.index.flatten().tolist() if expert < routing.experts}
    return {fleet.groups[fleet.part_of_expert[expert]].name for expert in chosen}
