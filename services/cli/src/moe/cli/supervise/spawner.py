"""Keeps a fork server alive and hands it what is to be started.

Starts asked for before it has imported the parts wait; when it dies, every process it had is told as exited and a new
one is started after a pause.
"""

import signal
import time
from collections.abc import Callable

from moe.cli.supervise import logs
from moe.cli.supervise.deployment import Deployment
from moe.cli.supervise.fork_client import ForkServer
from moe.cli.supervise.lifecycle import Event, Exited, Spawned
from moe.cli.supervise.spec import ProcessSpec

LOG_NAME = "nursery"
"""Name of the fork server's log, beside those of the processes."""

_TRIES = 3
_PAUSE_S = 1.0


class Spawner:
    """Starts and signals processes. on_event: a process's Spawned or Exited. on_broken: it can't ever work, and why."""

    def __init__(
        self, deployment: Deployment, on_event: Callable[[str, Event], None], on_broken: Callable[[str], None]
    ) -> None:
        self._deployment = deployment
        self._on_event = on_event
        self._on_broken = on_broken
        self._server: ForkServer | None = None
        self._loaded = False
        self._due = 0.0
        self._failures = 0
        self._waiting: list[ProcessSpec] = []
        self._running: set[str] = set()

    def spawn(self, spec: ProcessSpec) -> None:
        """Starts a process as soon as the fork server can."""
        self._waiting.append(spec)
        self._spawn_waiting()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a process, if it runs."""
        if self._server is not None:
            self._server.signal(name, number)

    def keep_alive(self, now: float) -> None:
        """Starts the fork server when there is none."""
        if self._server is None and now >= self._due:
            log = logs.path_of(self._deployment.logs, LOG_NAME)
            self._server = ForkServer(self._deployment.modules, self._deployment.environ, log, self)

    def drop_unstarted(self) -> None:
        """Tells starts that still wait for the fork server as exited: they won't happen."""
        if self._loaded:
            return
        dropped, self._waiting = self._waiting, []
        for spec in dropped:
            self._on_event(spec.name, Exited(0, "never started"))

    def close(self) -> None:
        """Ends the fork server."""
        if self._server is not None:
            self._server.close()

    def loaded(self) -> None:
        """The fork server has imported the parts."""
        self._loaded = True
        self._failures = 0
        self._spawn_waiting()

    def broken(self, reason: str) -> None:
        """The fork server can't import the parts."""
        self._on_broken(reason)

    def spawned(self, name: str, pid: int) -> None:
        """A process runs."""
        self._running.add(name)
        self._on_event(name, Spawned(pid))

    def exited(self, name: str, code: int, reason: str) -> None:
        """A process ended."""
        self._running.discard(name)
        self._on_event(name, Exited(code, reason))

    def lost(self) -> None:
        """The fork server ended, and every process with it."""
        self._failures += not self._loaded
        self._server, self._loaded = None, False
        self._due = time.monotonic() + _PAUSE_S
        if self._failures >= _TRIES:
            self._on_broken(f"the fork server ended {_TRIES} times before it had imported the parts")
        gone, self._running = self._running, set()
        for name in sorted(gone):
            self._on_event(name, Exited(-signal.SIGKILL, "the fork server ended"))

    def _spawn_waiting(self) -> None:
        if self._server is None or not self._loaded:
            return
        for spec in self._waiting:
            self._running.add(spec.name)  # from now on `lost` has to tell its end
            self._server.spawn(spec, logs.path_of(self._deployment.logs, spec.name))
        self._waiting.clear()
