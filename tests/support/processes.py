"""Real expert and aggregator processes for tests, forked from one fork server, and the file they are found by.

The router's side runs in the test itself, where logits can be seen. What the processes are comes from the same plan and
layout as `moe up`.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from moe.cli.supervise.contact import Contact
from moe.cli.supervise.fork_client import ForkServer
from moe.cli.supervise.layout import MODULES, Options, Places, lay_out
from moe.cli.supervise.lifecycle import Healthy
from moe.cli.supervise.spec import ProcessSpec, Role
from moe.discovery.directory import AggregatorReplica, ExpertReplica, Snapshot
from moe.discovery.file import write
from moe.operator.planner import ModelFacts, Placement, Wishes, plan
from moe.wire.grpcio.loop_thread import LoopThread
from support.ports import free_port

PATIENCE_S = 120.0


@dataclass
class _Events:
    """What the fork server told, for other threads to wait on."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    ready: bool = False
    trouble: str = ""
    pids: dict[str, int] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)

    def loaded(self) -> None:
        with self.changed:
            self.ready = True
            self.changed.notify_all()

    def broken(self, reason: str) -> None:
        with self.changed:
            self.trouble = reason
            self.changed.notify_all()

    def spawned(self, name: str, pid: int) -> None:
        with self.changed:
            self.pids[name] = pid
            self.exits.pop(name, None)
            self.changed.notify_all()

    def exited(self, name: str, code: int, reason: str) -> None:
        del reason
        with self.changed:
            self.pids.pop(name, None)
            self.exits[name] = code
            self.changed.notify_all()

    def lost(self) -> None:
        self.broken("the fork server ended")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: condition() or self.trouble, PATIENCE_S) or self.trouble:
                raise TimeoutError(f"{what}: {self.trouble or 'not in time'}")


class Nursery:
    """A fork server with the parts imported; processes are forked from it in milliseconds."""

    def __init__(self, folder: Path) -> None:
        self.events = _Events()
        self.loop = LoopThread("nursery")
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        modules = [MODULES[Role.EXPERT], MODULES[Role.AGGREGATOR]]
        self._log = folder / "nursery.log"
        self._server = self.loop.run(self._start(modules, environ))
        self.events.wait(lambda: self.events.ready, "importing the parts")

    async def _start(self, modules: list[str], environ: dict[str, str]) -> ForkServer:
        return ForkServer(modules, environ, self._log, self.events)

    def spawn(self, spec: ProcessSpec, log: Path) -> None:
        """Forks a process and waits until it exists."""
        self.events.exits.pop(spec.name, None)
        self.loop.loop.call_soon_threadsafe(self._server.spawn, spec, log)
        self.events.wait(lambda: spec.name in self.events.pids, f"starting {spec.name}")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signals a process and waits for its end; returns its exit code."""
        self.loop.loop.call_soon_threadsafe(self._server.signal, name, number)
        self.events.wait(lambda: name in self.events.exits, f"ending {name}")
        return self.events.exits[name]

    def close(self) -> None:
        """Ends the fork server and whatever it started."""

        async def close() -> None:
            self._server.close()

        self.loop.run(close())
        self.loop.close()


class Fleet:
    """The experts and aggregators of one deployment. `directory` is the file a router follows."""

    def __init__(
        self,
        nursery: Nursery,
        package: Path,
        facts: ModelFacts,
        folder: Path,
        *,
        groups: int,
        replicas: int = 1,
        placement: Placement = Placement.EMBEDDED,
        deterministic: bool = False,
        dtype: str | None = None,
        wire: str | None = None,
    ) -> None:
        self._nursery = nursery
        self._folder = folder
        self.directory = folder / "directory.json"
        wishes = Wishes(cores=2, groups=groups, replicas=replicas, aggregator=placement)
        self.plan = plan(facts, wishes)
        places = Places(package=package, folder=folder, directory=self.directory)
        specs = lay_out(self.plan, places, Options(deterministic=deterministic, dtype=dtype, wire=wire), free_port)
        self.specs = {spec.name: spec for spec in specs if spec.role is not Role.ROUTER}
        self._version = 0
        self._write(ready=())
        for spec in self.specs.values():
            self._spawn(spec)
        self.wait_ready()

    def names(self, role: Role) -> list[str]:
        """Names of the processes of a role, in the plan's order."""
        return [spec.name for spec in self.specs.values() if spec.role is role]

    def kill(self, name: str) -> None:
        """kill -9; the directory goes on listing it as ready, as for the moment before anybody notices."""
        self._nursery.kill(name)

    def restart(self, name: str) -> None:
        """Starts a dead process again and waits until it is ready."""
        self._spawn(self.specs[name])
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until every process serves; then the directory says so."""
        self._nursery.loop.run(self._all_healthy(), PATIENCE_S)
        self._write(ready=tuple(self.specs))

    def close(self) -> None:
        """Ends all of it."""
        for name in self.specs:
            if name in self._nursery.events.pids:
                self._nursery.kill(name)

    def _spawn(self, spec: ProcessSpec) -> None:
        self._nursery.spawn(spec, self._folder / f"{spec.name}.log")

    async def _all_healthy(self) -> None:
        await asyncio.gather(*(self._healthy(spec) for spec in self.specs.values()))

    async def _healthy(self, spec: ProcessSpec) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            contact = Contact(spec.endpoint)  # a new one each time: a channel that failed pauses before it tries again
            try:
                state = await contact.health(1.0)
            finally:
                await contact.close()
            if isinstance(state, Healthy):
                return
            if spec.name in self._nursery.events.exits or time.monotonic() > until:
                log = (self._folder / f"{spec.name}.log").read_text()[-2000:]
                raise TimeoutError(f"{spec.name} is not ready: {state}\n{log}")
            await asyncio.sleep(0.01)

    def _write(self, ready: tuple[str, ...]) -> None:
        self._version += 1
        experts = tuple(
            ExpertReplica(spec.name, spec.group, spec.experts, spec.endpoint, spec.name in ready)
            for spec in self.specs.values()
            if spec.role is Role.EXPERT
        )
        aggregators = tuple(
            AggregatorReplica(spec.name, spec.endpoint, spec.name in ready)
            for spec in self.specs.values()
            if spec.role is Role.AGGREGATOR
        )
        write(self.directory, Snapshot(self._version, self.plan.model, experts, aggregators))


@contextlib.contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    """A fork server for the length of a block."""
    made = Nursery(folder)
    try:
        yield made
    finally:
        made.close()
