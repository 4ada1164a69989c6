"""The parts of one open layer call: which are to be sent now, where to, and which nobody can deliver.

Pure: time and the fleet are passed in. A part that fails goes to another replica at once where there is one, else to
the same after a growing delay. Under WAIT it is tried until the deadline; under RENORMALISE and FAIL it is given up
when no replica is ready or each that is has failed it `MOST_FAILURES` times. Under every policy it is given up when
each ready replica's numbers were refused `MOST_REFUSALS` times: they would be the same again, and all would wait.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from moe.discovery.directory import ExpertReplica
from moe.router.groups import Fleet
from moe.router.replicas import choose_replica
from moe.wire.port import FailureKind, MissingPolicy, PartFailure, Target

MOST_FAILURES = 2
"""Failures of one replica after which it counts as unable to deliver a part: the first may be a broken stream."""

MOST_REFUSALS = 3
"""Refusals by the combiner of what one replica computed, after which trying it again is of no use."""

_ABSENT_DELAY_S = 0.02
_FIRST_DELAY_S = 0.02
_LONGEST_DELAY_S = 1.0
PATIENT = frozenset({FailureKind.OVERLOADED, FailureKind.NO_COLLECTOR, FailureKind.EXPIRED})
"""Kinds that say that the replica lives and will take the part later."""

_PATIENT_FAILURES = 20
"""Failures of these kinds, with their delays some ten seconds, after which a replica counts as unable all the same."""


@dataclass(frozen=True)
class GivenUp:
    """A part that is not tried any more. invalid: a replica says the dispatch is malformed, which no policy excuses."""

    part: int
    reason: str
    invalid: bool = False


@dataclass(frozen=True)
class Hedge:
    """A part that is sent to another replica too. silent: the endpoint that has not answered for `waited_s`."""

    target: Target
    group: str
    silent: str
    waited_s: float


@dataclass(slots=True)
class _History:
    """What has gone wrong with one part, by endpoint."""

    failures: Counter[str] = field(default_factory=Counter)
    patience: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, str] = field(default_factory=dict)
    unusable: Counter[str] = field(default_factory=Counter)

    def unable(self, endpoint: str) -> bool:
        """Whether a replica has shown that it can't deliver this part."""
        return (
            endpoint in self.refusals
            or self.failures[endpoint] >= MOST_FAILURES
            or self.patience[endpoint] >= _PATIENT_FAILURES
        )

    def tried(self) -> set[str]:
        """Replicas that something went wrong with."""
        return {*self.failures, *self.patience, *self.refusals}


@dataclass(slots=True)
class _PartState:
    """One part. history: None as long as all goes well, which is the common case and has to be cheap."""

    part: int
    group: str
    send_at: float | None
    sent_at: float = 0.0
    asked: str = ""
    hedged: bool = False
    history: _History | None = None
    attempts: int = 0
    last: str = ""


class CallParts:
    """Tracks the parts of one call from its first exchange to its answer."""

    def __init__(self, parts: Mapping[int, str], policy: MissingPolicy, now: float, turn: int = 0) -> None:
        """parts: part -> its group's name. turn: by which equally busy replicas take turns."""
        self._states = {part: _PartState(part, group, send_at=now) for part, group in parts.items()}
        self._policy = policy
        self._turn = turn
        self.retries = 0
        self.hedged = 0

    def sent(self, endpoints: Sequence[str], now: float) -> None:
        """Every part is on its way already. endpoints: by part."""
        for state in self._states.values():
            state.attempts += 1
            state.send_at, state.sent_at, state.asked = None, now, endpoints[state.part]

    def due(
        self, fleet: Fleet, queued_rows: Callable[[str], int], suspects: Collection[str], now: float
    ) -> tuple[list[Target], list[GivenUp]]:
        """What to send and what to give up at this moment."""
        targets: list[Target] = []
        given_up: list[GivenUp] = []
        for state in self._waiting(now):
            hopeless = self._hopeless(state, fleet)
            if hopeless is not None:
                state.send_at = None
                given_up.append(hopeless)
                continue
            replica = self._choose(state, fleet, queued_rows, suspects)
            if replica is None:
                state.send_at = now + _ABSENT_DELAY_S
                state.last = state.last or "no replica is ready"
                continue
            self.retries += state.attempts > 0
            state.attempts += 1
            state.send_at, state.sent_at = None, now
            state.asked, state.hedged = replica.endpoint, False
            targets.append(Target(state.part, replica.endpoint))
        return targets, given_up

    def hedges(
        self,
        fleet: Fleet,
        queued_rows: Callable[[str], int],
        suspects: Collection[str],
        patience_s: Callable[[str], float],
        now: float,
    ) -> list[Hedge]:
        """Parts on their way for longer than their group's patience, each for another ready replica, once a sending.

        Which of them is the late one can't be told from here, so all are sent again that have another replica.
        """
        found: list[Hedge] = []
        for state in self._states.values():
            if state.send_at is not None or state.hedged or not state.asked:
                continue
            others = [replica for replica in fleet.ready(state.group) if replica.endpoint != state.asked]
            waited = now - state.sent_at
            if not others or waited < patience_s(state.group):
                continue
            replica = choose_replica(others, queued_rows, suspects, self._turn)
            assert replica is not None, "there is one among several"
            state.hedged = True
            found.append(Hedge(Target(state.part, replica.endpoint), state.group, state.asked, waited))
        self.hedged += len(found)
        return found

    def _choose(
        self, state: _PartState, fleet: Fleet, queued_rows: Callable[[str], int], suspects: Collection[str]
    ) -> ExpertReplica | None:
        ready, history = fleet.ready(state.group), state.history
        if history is None:
            return choose_replica(ready, queued_rows, suspects, self._turn)
        able = [replica for replica in ready if not history.unable(replica.endpoint)] or ready
        return choose_replica(able, queued_rows, {*suspects, *history.tried()}, self._turn)

    def _waiting(self, now: float) -> list[_PartState]:
        return [s for s in self._states.values() if s.send_at is not None and s.send_at <= now]

    def failed(self, failure: PartFailure, fleet: Fleet, now: float) -> None:
        """Takes note of a failure and decides when the part is sent again."""
        state = self._states.get(failure.part)
        if state is None:
            return
        state.last = f"{failure.endpoint}: {failure.kind.value}: {failure.message}"
        history = state.history = state.history or _History()
        if failure.kind is FailureKind.INVALID:
            history.refusals[failure.endpoint] = failure.message or failure.kind.value
        elif failure.kind in PATIENT:
            history.patience[failure.endpoint] += 1
        else:
            history.failures[failure.endpoint] += 1
            history.unusable[failure.endpoint] += failure.kind is FailureKind.REFUSED
        state.send_at = now + _delay_s(history, failure, fleet.ready(state.group))

    def next_send(self) -> float | None:
        """The earliest moment at which `due` may have something; None when all parts are on their way."""
        return min((state.send_at for state in self._states.values() if state.send_at is not None), default=None)

    def last_failure(self, part: int) -> str:
        """What is known of why a part has not come; empty when nothing is."""
        return self._states[part].last

    def _hopeless(self, state: _PartState, fleet: Fleet) -> GivenUp | None:
        ready, history = fleet.ready(state.group), state.history
        refused = [history.refusals.get(replica.endpoint) for replica in ready] if history else []
        if refused and all(refused):
            return GivenUp(state.part, f"the dispatch is refused: {refused[0]}", invalid=True)
        if self._policy is MissingPolicy.WAIT:
            if ready and history and all(history.unusable[replica.endpoint] >= MOST_REFUSALS for replica in ready):
                return GivenUp(state.part, f"no replica's numbers can be used; last {state.last}", invalid=True)
            return None
        if not ready:
            return GivenUp(state.part, _because("no replica is ready", state.last))
        if history and all(history.unable(replica.endpoint) for replica in ready):
            return GivenUp(state.part, f"every ready replica failed; last {state.last}")
        return None


def _delay_s(history: _History, failure: PartFailure, ready: Sequence[ExpertReplica]) -> float:
    tried = history.tried()
    if any(replica.endpoint not in tried for replica in ready):
        return 0.0
    again = max(0, (history.failures + history.patience).total() - 1)
    return max(failure.retry_after_s, min(_FIRST_DELAY_S * 2.0 ** min(again, 10), _LONGEST_DELAY_S))


def _because(what: str, last: str) -> str:
    return f"{what}; last {last}" if last else what
