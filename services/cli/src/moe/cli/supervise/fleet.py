"""All processes of a deployment together, as a pure state machine over lifecycle.py.

When it is up, when starting is given up, in which order it stops, and what the directory says of it. No I/O and no
clock: the supervisor brings the events and the time, and carries out the commands.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moe.cli.supervise.lifecycle import Action, Event, Process, Rules, State, Stop, StopNow, Tick, advance
from moe.cli.supervise.spec import ProcessSpec, Role
from moe.discovery.directory import AggregatorReplica, ExpertReplica, Snapshot


@dataclass(frozen=True)
class Command:
    """Do this to that process."""

    name: str
    action: Action


@dataclass(frozen=True)
class Change:
    """A process went from one state to another."""

    before: Process
    after: Process


@dataclass(frozen=True)
class Step:
    """What an event led to."""

    commands: tuple[Command, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class GivenUp:
    """Starting failed for good. processes: those to blame. bad_configuration: their flags or package are wrong."""

    processes: tuple[str, ...]
    reason: str
    bad_configuration: bool = False


class Fleet:
    """The processes by name, in the order of the plan."""

    def __init__(self, specs: Sequence[ProcessSpec], rules: Rules, *, started: float, ready_timeout_s: float) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.processes = {spec.name: Process(spec.name, since=started, due=started) for spec in specs}
        self.up = False
        self.stopping = False
        self.given_up: GivenUp | None = None
        self._rules = rules
        self._deadline = started + ready_timeout_s
        self._ready_timeout_s = ready_timeout_s

    def handle(self, name: str, event: Event, now: float) -> Step:
        """Passes an event to one process."""
        before = self.processes[name]
        after, actions = advance(before, event, now, self._rules)
        self.processes[name] = after
        self._judge_start(now)
        changed = (Change(before, after),) if before.state is not after.state else ()
        return Step(tuple(Command(name, action) for action in actions), changed)

    def tick(self, now: float) -> Step:
        """Lets time pass; while stopping, first asks the next ones to stop.

        An expert that dies while the router still drains is started again: the requests being finished need it.
        """
        stops = [self.handle(name, Stop(), now) for name in self._next_to_stop()] if self.stopping else []
        return _joined([*stops, *[self.handle(name, Tick(), now) for name in self.processes]])

    def stop(self, now: float) -> Step:
        """Begins to stop: routers first, so that requests finish; the rest when they are gone."""
        self.stopping = True
        return self.tick(now)

    def stop_now(self, now: float) -> Step:
        """Ends everything without draining."""
        self.stopping = True
        return _joined(self.handle(name, StopNow(), now) for name in self.processes)

    @property
    def ended(self) -> bool:
        """Whether nothing runs and nothing will."""
        return all(process.ended for process in self.processes.values())

    def unready(self) -> list[Process]:
        """Those that are not ready now."""
        return [process for process in self.processes.values() if process.state is not State.READY]

    def snapshot(self, model: str, version: int) -> Snapshot:
        """What the directory says: every expert and aggregator, ready or not."""
        experts = tuple(
            ExpertReplica(spec.name, spec.group, spec.experts, spec.endpoint, self._ready(spec.name))
            for spec in self._of(Role.EXPERT)
        )
        aggregators = tuple(
            AggregatorReplica(spec.name, spec.endpoint, self._ready(spec.name)) for spec in self._of(Role.AGGREGATOR)
        )
        return Snapshot(version, model, experts, aggregators)

    def _of(self, role: Role) -> list[ProcessSpec]:
        return [spec for spec in self.specs.values() if spec.role is role]

    def _ready(self, name: str) -> bool:
        return self.processes[name].state is State.READY

    def _next_to_stop(self) -> list[str]:
        routers = [spec.name for spec in self._of(Role.ROUTER)]
        if all(self.processes[name].ended for name in routers):
            return list(self.processes)
        return routers

    def _judge_start(self, now: float) -> None:
        if self.up or self.stopping or self.given_up:
            return
        self.up = not self.unready()
        if not self.up:
            self.given_up = self._failed() or self._crash_looping() or self._too_late(now)

    def _failed(self) -> GivenUp | None:
        failed = [process for process in self.processes.values() if process.state is State.FAILED]
        if not failed:
            return None
        return GivenUp((failed[0].name,), f"{failed[0].name} can't start ({failed[0].reason})", bad_configuration=True)

    def _crash_looping(self) -> GivenUp | None:
        for process in self.processes.values():
            if not process.was_ready and process.failures >= self._rules.looping_after:
                reason = f"{process.name} ended {process.failures} times before it was ready ({process.reason})"
                return GivenUp((process.name,), reason)
        return None

    def _too_late(self, now: float) -> GivenUp | None:
        if now <= self._deadline:
            return None
        late = tuple(process.name for process in self.unready())
        return GivenUp(late, f"not ready within {self._ready_timeout_s:g} s: {', '.join(late)}")


def _joined(steps: Iterable[Step]) -> Step:
    steps = list(steps)
    return Step(
        tuple(command for step in steps for command in step.commands),
        tuple(change for step in steps for change in step.changes),
    )
