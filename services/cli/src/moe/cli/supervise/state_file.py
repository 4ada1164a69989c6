"""What a supervisor tells others about its deployment: a JSON file in its folder, replaced as a whole at each change.

`moe status`, and every command that looks for something to talk to, read it. It is a courtesy, not a lock: whether the
supervisor lives is asked of the kernel (pid and start time), so a file left behind by a killed one is not believed.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

FILE_NAME = "state.json"


@dataclass(frozen=True)
class ProcessRecord:
    """One process of a deployment. state: a value of lifecycle.State. pid: None while nothing runs."""

    name: str
    role: str
    state: str
    pid: int | None
    restarts: int
    endpoint: str
    group: str = ""
    experts: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class DeploymentRecord:
    """A deployment. pid_started: the supervisor's start time as the kernel tells it, seconds since the epoch.

    address: the router's gRPC target. up: whether all its processes have been ready once.
    """

    name: str
    model: str
    package: str
    pid: int
    pid_started: float
    address: str
    up: bool
    processes: tuple[ProcessRecord, ...]


def own_start() -> float:
    """This process's start time, seconds since the epoch."""
    return psutil.Process().create_time()


def write(folder: Path, record: DeploymentRecord) -> None:
    """Replaces the file atomically."""
    partial = folder / f"{FILE_NAME}.partial"
    partial.write_text(json.dumps(asdict(record)))
    partial.replace(folder / FILE_NAME)


def read(folder: Path) -> DeploymentRecord | None:
    """The deployment of a folder, or None when there is none that lives."""
    try:
        fields = json.loads((folder / FILE_NAME).read_text())
        processes = tuple(
            ProcessRecord(**{**process, "experts": tuple(process["experts"])}) for process in fields["processes"]
        )
        record = DeploymentRecord(**{**fields, "processes": processes})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if _lives(record) else None


def running(base: Path) -> list[DeploymentRecord]:
    """All deployments that live, by name."""
    folders = sorted(path for path in base.iterdir() if path.is_dir())
    return [record for record in map(read, folders) if record is not None]


def _lives(record: DeploymentRecord) -> bool:
    if record.pid == os.getpid():
        return True
    try:
        return abs(psutil.Process(record.pid).create_time() - record.pid_started) < 1.0
    except psutil.Error:
        return False
