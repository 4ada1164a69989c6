"""One cgroup a cluster, in every hierarchy of the machine (version 1) or in the one (version 2).

All processes of the cluster live below it, whoever forked them and whatever became of their parents. `down` therefore
needs no names: it ends the pids that are listed there. Kubelet puts the pods' cgroups below it too, so that two
clusters on one machine don't clean up each other's pods.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from .errors import ClusterError

MOUNT = Path("/sys/fs/cgroup")
SYSTEM = "system"
"""Below the cluster's: processes that are no pod's. Version 2 allows no process beside a child cgroup."""


def version() -> int:
    """1 or 2."""
    return 2 if (MOUNT / "cgroup.controllers").exists() else 1


def driver_settings() -> dict[str, object]:
    """What kubelet has to be told: it refuses version 1 unless allowed."""
    return {"cgroupDriver": "cgroupfs", "failCgroupV1": False}


def ensure(cgroup: str) -> None:
    """Makes the cluster's cgroup and the one of its own processes."""
    for top in _hierarchies():
        for path in (top / cgroup, top / cgroup / SYSTEM):
            path.mkdir(exist_ok=True)
            if top.name == "cpuset":
                _inherit(path)
    if version() == 2:
        wanted = " ".join(f"+{each}" for each in (MOUNT / "cgroup.controllers").read_text().split())
        (MOUNT / cgroup / "cgroup.subtree_control").write_text(wanted)


def entry_files(cgroup: str) -> list[Path]:
    """Where a process of the cluster writes its pid to be counted to it."""
    tops = [MOUNT] if version() == 2 else [top for top in _hierarchies() if top.name == "pids"]
    return [top / cgroup / SYSTEM / "cgroup.procs" for top in tops]


def pids(cgroup: str) -> set[int]:
    """Every process of the cluster."""
    found: set[int] = set()
    for top in _hierarchies():
        # not rglob, which raises when a pod's cgroup goes while it is looked through
        for folder, _, _ in os.walk(top / cgroup):
            with contextlib.suppress(OSError):
                found.update(int(each) for each in Path(folder, "cgroup.procs").read_text().split())
    return found - {0}


def kill(cgroup: str, patience_s: float = 30) -> None:
    """Ends every process of the cluster, those too that are forked meanwhile. Raises ClusterError."""
    until = time.monotonic() + patience_s
    while left := pids(cgroup):
        if time.monotonic() > until:
            raise ClusterError(f"processes {sorted(left)} of cgroup {cgroup} don't end; see /proc/PID/stack")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove(cgroup: str, patience_s: float = 10) -> None:
    """Raises ClusterError when something still lives there."""
    until = time.monotonic() + patience_s
    while left := [path for top in _hierarchies() for path in _deepest_first(top / cgroup)]:
        for path in left:
            with contextlib.suppress(OSError):
                path.rmdir()
        if time.monotonic() > until:
            raise ClusterError(f"cgroups stay: {', '.join(map(str, left[:5]))}; end what is in their cgroup.procs")


def _deepest_first(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    below = [each for each in path.rglob("*") if each.is_dir()]
    return [*sorted(below, key=lambda each: len(each.parts), reverse=True), path]


def _hierarchies() -> list[Path]:
    if version() == 2:
        return [MOUNT]
    # of two names of one mount (cpu and cpuacct, often) one is enough; runc also uses version 2's, "unified", beside
    return sorted({each.resolve() for each in MOUNT.iterdir() if (each / "cgroup.procs").exists()})


def _inherit(path: Path) -> None:
    """A new version 1 cpuset is empty, and nothing can enter it before it has processors and memory."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        (path / name).write_text((path.parent / name).read_text())
