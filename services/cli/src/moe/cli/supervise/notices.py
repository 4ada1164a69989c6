"""What a deployment tells its user: one notice per thing that happened, as a line of text or of JSON."""

from dataclasses import dataclass, field

from moe.cli.supervise.deployment import Deployment
from moe.cli.supervise.fleet import Change
from moe.cli.supervise.lifecycle import Process, State
from moe.wire.names import told


@dataclass(frozen=True)
class Notice:
    """Something happened. event: a word for machines. process: whom it concerns, empty for the whole deployment."""

    event: str
    text: str
    process: str = ""
    facts: dict[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """The fields of its JSON line."""
        return {"event": self.event, **({"process": self.process} if self.process else {}), **self.facts}


def of_change(change: Change, now: float) -> Notice:
    """The notice of a process that went from one state to another. now: of the clock that the states' times are of."""
    before, after = change.before, change.after
    age = now - before.since
    facts: dict[str, object] = {"state": after.state.value, "pid": after.pid or before.pid, "restarts": after.restarts}
    if after.reason:
        facts["reason"] = after.reason
    return Notice(after.state.value, _text(before, after, age, now), after.name, facts)


def of_up(deployment: Deployment) -> Notice:
    """The notice that every process is ready."""
    count = len(deployment.specs)
    text = f"{deployment.name} is up: {count} processes, router at {deployment.address}"
    return Notice("up", text, facts={"name": deployment.name, "address": deployment.address, "processes": count})


def of_deterministic(router: str, cost: str) -> Notice:
    """The notice of what deterministic mode costs, as a router has measured it."""
    return Notice("deterministic", f"deterministic: {cost}", router, {"cost": cost})


def of_wire(router: str, wire: str) -> Notice:
    """The notice of which implementation carries the layer calls, and what it costs if it is the slow one."""
    return Notice("wire", f"wire: {told(wire)}", router, {"wire": wire})


def of_crash_loop(process: Process, log: tuple[str, ...]) -> Notice:
    """The notice that a process keeps ending, with the last lines of its log."""
    lines = "".join(f"\n    {line}" for line in log)
    text = f"ended {process.failures} times in a row; the last lines of its log:{lines}"
    return Notice("crash_loop", text, process.name, {"failures": process.failures, "log": list(log)})


def _text(before: Process, after: Process, age: float, now: float) -> str:
    match after.state:
        case State.STARTING:
            return f"restarting (restart {after.restarts})" if after.restarts else "starting"
        case State.READY:
            return f"ready after {age:.1f} s" if before.state is State.STARTING else "ready again"
        case State.UNREADY:
            return f"not ready: {after.reason}"
        case State.WAITING:
            return f"ended ({after.reason}); starts again in {max(0.0, after.due - now):.1f} s"
        case State.FAILED:
            return f"ended ({after.reason}); not started again"
        case State.STOPPING:
            return "stopping"
        case State.STOPPED:
            return "stopped"
