"""Programs that outlive whoever started them: found again by pid files, never by name.

A process writes its own pid before it becomes the program, after it entered the cluster's cgroup and network namespace:
killed at any point, `up` leaves nothing that `down` can't find. A pid file counts only while its pid is in the cgroup,
so a pid that the machine gave to somebody else is never touched.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import cgroups, network
from .commands import run
from .errors import ClusterError
from .places import CHECKOUT, Places

_BECOME = """
pid_file=$1; log=$2; shift 2
while [ "$1" != -- ]; do echo $$ >"$1" || exit 1; shift; done; shift
echo $$ >"$pid_file.new" && mv "$pid_file.new" "$pid_file" || exit 1
exec "$@" >>"$log" 2>&1 </dev/null
"""


class Processes:
    """Those of one cluster."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def start(self, name: str, argv: Sequence[str | Path], *, outside: bool = False) -> None:
        """Unless it runs. outside: stays in the machine's own network."""
        if self.pid(name):
            return
        places = self._places
        places.logs.mkdir(parents=True, exist_ok=True)
        places.pid_file(name).parent.mkdir(parents=True, exist_ok=True)
        entries = cgroups.entry_files(places.cgroup)
        enter = [] if outside else network.entering(places.namespace)
        shell = ["setsid", "--fork", "sh", "-c", _BECOME, "become"]
        become: list[str | Path] = [*shell, places.pid_file(name), self.log(name), *entries, "--"]
        run([*become, *enter, *argv], cwd=CHECKOUT)
        self._wait_for(lambda: self.pid(name) is not None, 10, f"{name} did not start")

    def pid(self, name: str) -> int | None:
        """None when it does not run."""
        try:
            pid = int(self._places.pid_file(name).read_text())
        except (OSError, ValueError):
            return None
        return pid if pid in cgroups.pids(self._places.cgroup) else None

    def kill(self, name: str, sign: signal.Signals = signal.SIGKILL, patience_s: float = 10) -> None:
        """Ends it and waits for its end. SIGSTOP and SIGCONT are only sent. Raises ClusterError."""
        pid = self.pid(name)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)
        if sign not in {signal.SIGSTOP, signal.SIGCONT}:
            self._wait_for(lambda: self.pid(name) is None, patience_s, f"{name} (pid {pid}) does not end")

    def wait(self, name: str, ready: Callable[[], bool], patience_s: float) -> None:
        """Until it is ready. Raises ClusterError with the log's end when it died or the time is up."""
        until = time.monotonic() + patience_s
        while not ready():
            if self.pid(name) is None:
                raise ClusterError(f"{name} ended: {self.tail(name)}")
            if time.monotonic() > until:
                raise ClusterError(f"{name} is not ready after {patience_s:g} s: {self.tail(name)}")
            time.sleep(0.1)

    def log(self, name: str) -> Path:
        """Its output, of all its runs."""
        return self._places.logs / f"{name}.log"

    def tail(self, name: str) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            text = self.log(name).read_text(errors="replace")
            return f"{self.log(name)} ends:\n" + "\n".join(text.splitlines()[-12:])
        return "it logged nothing"

    @staticmethod
    def _wait_for(condition: Callable[[], bool], patience_s: float, complaint: str) -> None:
        until = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > until:
                raise ClusterError(f"{complaint} within {patience_s:g} s")
            time.sleep(0.02)
