"""The parts of one open layer call: which are to be sent now, where to, and which nobody can deliver.

Pure: time and the fleet are passed in. A part that fails goes to another replica at once where there is one, else to
the same after a growing delay. Under WAIT it is tried until the deadline; under RENORMALISE and FAIL it is given up
when no replica is ready or each that is has failed it `MOST_FAILURES` times.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from moe.router.groups import Fleet
from moe.router.replicas import choose_replica
from moe.wire.port import FailureKind, MissingPolicy, PartFailure, Target

MOST_FAILURES = 2
"""Failures of one replica after which it counts as unable to deliver a part: the first may be a broken stream."""

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


@dataclass
class _PartState:
    part: int
    group: str
    send_at: float | None
    failures: Counter[str] = field(default_factory=Counter)
    patience: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    last: str = ""

    def unable(self, endpoint: str) -> bool:
        """Whether a replica has shown that it can't deliver this part."""
        return (
            endpoint in self.refusals
            or self.failures[endpoint] >= MOST_FAILURES
            or self.patience[endpoint] >= _PATIENT_FAILURES
        )


class CallParts:
    """Tracks the parts of one call from its first exchange to its answer."""

    def __init__(self, parts: Mapping[int, str], policy: MissingPolicy, now: float, turn: int = 0) -> None:
        """parts: part -> its group's name. turn: by which equally busy replicas take turns."""
        self._states = {part: _PartState(part, group, send_at=now) for part, group in parts.items()}
        self._policy = policy
        self._turn = turn
        self.retries = 0

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
            able = [r for r in fleet.ready(state.group) if not state.unable(r.endpoint)] or fleet.ready(state.group)
            replica = choose_replica(able, queued_rows, {*suspects, *state.failures, *state.patience}, self._turn)
            if replica is None:
                state.send_at = now + _ABSENT_DELAY_S
                state.last = state.last or "no replica is ready"
                continue
            self.retries += state.attempts > 0
            state.attempts += 1
            state.send_at = None
            targets.append(Target(state.part, replica.endpoint))
        return targets, given_up

    def _waiting(self, now: float) -> list[_PartState]:
        return [s for s in self._states.values() if s.send_at is not None and s.send_at <= now]

    def failed(self, failure: PartFailure, fleet: Fleet, now: float) -> None:
        """Takes note of a failure and decides when the part is sent again."""
        state = self._states.get(failure.part)
        if state is None:
            return
        state.last = f"{failure.endpoint}: {failure.kind.value}: {failure.message}"
        if failure.kind is FailureKind.INVALID:
            state.refusals[failure.endpoint] = failure.message
        elif failure.kind in PATIENT:
            state.patience[failure.endpoint] += 1
        else:
            state.failures[failure.endpoint] += 1
        state.send_at = now + self._delay_s(state, failure, fleet)

    def next_send(self) -> float | None:
        """The earliest moment at which `due` may have something; None when all parts are on their way."""
        return min((state.send_at for state in self._states.values() if state.send_at is not None), default=None)

    def last_failure(self, part: int) -> str:
        """What is known of why a part has not come; empty when nothing is."""
        return self._states[part].last

    def _delay_s(self, state: _PartState, failure: PartFailure, fleet: Fleet) -> float:
        tried = {*state.failures, *state.patience, *state.refusals}
        if any(replica.endpoint not in tried for replica in fleet.ready(state.group)):
            return 0.0
        again = max(0, sum((state.failures + state.patience).values()) - 1)
        return max(failure.retry_after_s, min(_FIRST_DELAY_S * 2.0 ** min(again, 10), _LONGEST_DELAY_S))

    def _hopeless(self, state: _PartState, fleet: Fleet) -> GivenUp | None:
        ready = fleet.ready(state.group)
        refused = [state.refusals[r.endpoint] for r in ready if r.endpoint in state.refusals]
        if ready and len(refused) == len(ready):
            return GivenUp(state.part, f"the dispatch is refused: {refused[0]}", invalid=True)
        if self._policy is MissingPolicy.WAIT:
            return None
        if not ready:
            return GivenUp(state.part, _because("no replica is ready", state.last))
        if all(state.unable(replica.endpoint) for replica in ready):
            return GivenUp(state.part, f"every ready replica failed; last {state.last}")
        return None


def _because(what: str, last: str) -> str:
    return f"{what}; last {last}" if last else what
