"""The life of one supervised process as a pure state machine: events and the time in, the next state and actions out.

    waiting ──due──► starting ──healthy──► ready ◄──► unready
       ▲                │ exit               │ exit      │ exit, or hung for too long
       └────back-off────┴────────────────────┴───────────┘   exit code 2 before it was ever ready ──► failed
    any ──stop──► stopping ──exit──► stopped

It knows nothing of other processes (fleet.py does), of forks, signals or gRPC (supervisor.py does).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

EXIT_BAD_CONFIGURATION = 2
"""A part ends with this code when its flags or its package are bad. Unless it has worked before with the same flags,
starting it again can't help."""


class State(Enum):
    """What a supervised process is doing; the values are what tables and JSON show."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    UNREADY = "unready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Rules:
    """Durations in seconds. restart_delay: consecutive failures (1, 2, ...) -> seconds to wait before the next start.

    start_timeout_s: longest from start to ready. hang_timeout_s: longest a process that was ready may fail its health
    checks before it is killed. stable_s: ready for this long, earlier failures are forgotten. drain_timeout_s: longest
    from the request to stop until it is killed. looping_after: failures in a row that make a crash loop.
    """

    restart_delay: Callable[[int], float]
    looping_after: int = 5
    start_timeout_s: float = 300.0
    hang_timeout_s: float = 60.0
    stable_s: float = 30.0
    drain_timeout_s: float = 15.0


@dataclass(frozen=True)
class Process:
    """Where one process stands. Times are seconds of one monotonic clock.

    since: when the state began. due: when a waiting process starts. failures: exits in a row, forgotten once it is
    stable. restarts: starts after the first. reason: of the last exit or failed health check.
    """

    name: str
    state: State = State.WAITING
    pid: int | None = None
    since: float = 0.0
    due: float = 0.0
    failures: int = 0
    starts: int = 0
    was_ready: bool = False
    killed: bool = False
    reason: str = ""

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

    @property
    def ended(self) -> bool:
        """Nothing runs and nothing will."""
        return self.state in (State.STOPPED, State.FAILED)


@dataclass(frozen=True)
class Spawned:
    """The fork server started it."""

    pid: int


@dataclass(frozen=True)
class Healthy:
    """It answered its health check with SERVING."""


@dataclass(frozen=True)
class Unhealthy:
    """It answered otherwise, or not at all."""

    reason: str


@dataclass(frozen=True)
class Exited:
    """It ended. code: exit code, or minus the number of the signal, as subprocess has it."""

    code: int
    reason: str = ""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Stop:
    """It is to drain and end."""


@dataclass(frozen=True)
class StopNow:
    """It is to end at once, without draining."""


Event = Spawned | Healthy | Unhealthy | Exited | Tick | Stop | StopNow


class Action(Enum):
    """What the supervisor has to do to the process."""

    SPAWN = "spawn"
    TERMINATE = "terminate"
    KILL = "kill"


Transition = tuple[Process, tuple[Action, ...]]


def advance(process: Process, event: Event, now: float, rules: Rules) -> Transition:
    """The process after the event, and what has to be done. Events that don't apply to the state change nothing."""
    match event:
        case Tick():
            return _tick(process, now, rules)
        case Spawned(pid):
            return _spawned(process, pid)
        case Healthy():
            return _healthy(process, now), ()
        case Unhealthy(reason):
            return _unhealthy(process, reason, now), ()
        case Exited():
            return _exited(process, event, now, rules), ()
        case Stop():
            return _stop(process, now)
        case StopNow():
            return _stop_now(process, now)


def _tick(process: Process, now: float, rules: Rules) -> Transition:
    age = now - process.since
    match process.state:
        case State.WAITING if now >= process.due:
            started = replace(process, state=State.STARTING, since=now, starts=process.starts + 1, killed=False)
            return started, (Action.SPAWN,)
        case State.STARTING if age > rules.start_timeout_s:
            return _kill(process, f"not ready within {rules.start_timeout_s:g} s")
        case State.UNREADY if age > rules.hang_timeout_s:
            return _kill(process, f"failed its health checks for {rules.hang_timeout_s:g} s: {process.reason}")
        case State.STOPPING if age > rules.drain_timeout_s:
            return _kill(process, f"not drained within {rules.drain_timeout_s:g} s")
        case State.READY if process.failures and age > rules.stable_s:
            return replace(process, failures=0), ()
        case _:
            return process, ()


def _kill(process: Process, reason: str) -> Transition:
    if process.killed or process.pid is None:
        return process, ()
    return replace(process, killed=True, reason=reason), (Action.KILL,)


def _spawned(process: Process, pid: int) -> Transition:
    process = replace(process, pid=pid)
    if process.state is not State.STOPPING:
        return process, ()
    return process, (Action.KILL if process.killed else Action.TERMINATE,)


def _healthy(process: Process, now: float) -> Process:
    if process.state not in (State.STARTING, State.UNREADY) or process.killed:
        return process
    return replace(process, state=State.READY, since=now, was_ready=True, reason="")


def _unhealthy(process: Process, reason: str, now: float) -> Process:
    if process.state is State.READY:
        return replace(process, state=State.UNREADY, since=now, reason=reason)
    if process.state in (State.STARTING, State.UNREADY) and not process.killed:
        return replace(process, reason=reason)
    return process


def _exited(process: Process, exit_: Exited, now: float, rules: Rules) -> Process:
    if process.ended or process.state is State.WAITING:
        return process
    gone = replace(process, pid=None, since=now)
    if process.state is State.STOPPING:
        return replace(gone, state=State.STOPPED)
    reason = process.reason if process.killed else exit_.reason or describe_exit(exit_.code)
    if exit_.code == EXIT_BAD_CONFIGURATION and not process.was_ready:
        return replace(gone, state=State.FAILED, reason=reason)
    stable = process.state is State.READY and now - process.since > rules.stable_s
    failures = 1 if stable else process.failures + 1
    due = now + rules.restart_delay(failures)
    return replace(gone, state=State.WAITING, failures=failures, due=due, reason=reason)


def _stop(process: Process, now: float) -> Transition:
    if process.ended or process.state is State.STOPPING:
        return process, ()
    if process.state is State.WAITING:
        return replace(process, state=State.STOPPED, since=now), ()
    stopping = replace(process, state=State.STOPPING, since=now)
    return stopping, (Action.TERMINATE,) if process.pid is not None else ()


def _stop_now(process: Process, now: float) -> Transition:
    if process.ended:
        return process, ()
    if process.state is State.WAITING:
        return replace(process, state=State.STOPPED, since=now), ()
    since = process.since if process.state is State.STOPPING else now
    stopping = replace(process, state=State.STOPPING, since=since, killed=True)
    return stopping, (Action.KILL,) if process.pid is not None else ()


def describe_exit(code: int) -> str:
    """An exit code in words: `exit code 1`, `killed by SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    from signal import Signals

    try:
        return f"killed by {Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
