"""Carries out what the fleet decides: starts, signals, health checks, notices.

All decisions are in fleet.py and lifecycle.py. One asyncio loop, in one thread that lives as long as the deployment
(the kernel ends the fork server when the thread that started it ends).
"""

import asyncio
import signal
import time
from collections.abc import Callable

from moe.cli.supervise import logs, notices
from moe.cli.supervise.contact import Contact, dialable
from moe.cli.supervise.deployment import Deployment, Failure
from moe.cli.supervise.fleet import Change, Fleet, GivenUp, Step
from moe.cli.supervise.lifecycle import Action, Event, Healthy, State
from moe.cli.supervise.notices import Notice
from moe.cli.supervise.publisher import Publisher
from moe.cli.supervise.samples import Sample, Samples
from moe.cli.supervise.spawner import LOG_NAME, Spawner
from moe.cli.supervise.spec import ProcessSpec, Role

_TICK_S = 0.1
_STARTING_CHECK_S = 0.2
_READY_CHECK_S = 1.0
_CHECK_TIMEOUT_S = 5.0
_LOG_CHECK_S = 10.0

_ALIVE = (State.STARTING, State.READY, State.UNREADY)


class Supervisor:
    """Runs a deployment until it is told to stop or can't start. Made and used in a running asyncio loop.

    notify: told of everything that happens. What it can't say is lost and stops nothing; when nobody hears it any more
    (BrokenPipeError) the deployment drains, as it would on a hang-up, and `unheard` is set.
    with_samples: collect the parts' figures in `samples`, once a second.
    """

    def __init__(self, deployment: Deployment, notify: Callable[[Notice], None], *, with_samples: bool = False) -> None:
        self.deployment = deployment
        self.samples = Samples()
        self.failure: Failure | None = None
        self.fleet = Fleet(
            deployment.specs, deployment.rules, started=time.monotonic(), ready_timeout_s=deployment.ready_timeout_s
        )
        self.unheard = False
        self._told_up = False
        self._notify = notify
        self._with_samples = with_samples
        self._publisher = Publisher(deployment, self.fleet, self._tell)
        self._spawner = Spawner(deployment, self._handle, self._broken)
        self._wake = asyncio.Event()
        self._next_log_check = 0.0

    async def run(self) -> Failure | None:
        """Until everything has ended; returns why it never came up, or None."""
        watches = [asyncio.create_task(self._watch(spec)) for spec in self.deployment.specs]
        try:
            while not self.fleet.ended:
                self._turn(time.monotonic())
                await self._pause()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            self._spawner.close()
        return self.failure

    def stop(self) -> None:
        """Begins to drain; a second call ends everything at once."""
        if self.fleet.stopping:
            self._apply(self.fleet.stop_now(time.monotonic()))
            return
        self._tell(Notice("draining", "stopping: the router first, then the rest"))
        self._apply(self.fleet.stop(time.monotonic()))

    def _tell(self, notice: Notice) -> None:
        try:
            self._notify(notice)
        except BrokenPipeError:
            self.unheard = True
        except OSError:
            return  # a full disk behind a redirected output, say: no reason to end anything

    def _turn(self, now: float) -> None:
        self._publisher.flush()
        if self.unheard and not self.fleet.stopping:
            self.stop()
        if self.fleet.stopping:
            self._spawner.drop_unstarted()
        else:
            self._spawner.keep_alive(now)
        self._apply(self.fleet.tick(now))
        if now >= self._next_log_check:
            self._next_log_check = now + _LOG_CHECK_S
            for name in self.fleet.specs:
                logs.bound(logs.path_of(self.deployment.logs, name))

    async def _pause(self) -> None:
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), _TICK_S)
        except TimeoutError:
            return

    def _handle(self, name: str, event: Event) -> None:
        self._publisher.changed()
        self._apply(self.fleet.handle(name, event, time.monotonic()))

    def _apply(self, step: Step) -> None:
        for command in step.commands:
            self._command(command.name, command.action)
        for change in step.changes:
            self._publisher.changed()
            self._wake.set()
            if change.after.state is State.STARTING:
                self.samples.forget(change.after.name)
            self._tell(notices.of_change(change, time.monotonic()))
            if self._is_crash_loop(change):
                self._tell(notices.of_crash_loop(change.after, self._log_of(change.after.name)))
        if self.fleet.given_up is not None and self.failure is None:
            self._fail(self.fleet.given_up)
        if self.fleet.up and not self._told_up:
            self._told_up = True
            self._publisher.flush()
            self._tell(notices.of_up(self.deployment))

    def _command(self, name: str, action: Action) -> None:
        match action:
            case Action.SPAWN:
                self._spawner.spawn(self.fleet.specs[name])
            case Action.TERMINATE:
                self._spawner.signal(name, signal.SIGTERM)
            case Action.KILL:
                self._spawner.signal(name, signal.SIGKILL)

    def _broken(self, reason: str) -> None:
        if self.failure is None:
            self._fail(GivenUp((LOG_NAME,), reason, bad_configuration=True))

    def _fail(self, given_up: GivenUp) -> None:
        self.failure = Failure(given_up.reason, self._log_of(given_up.processes[0]), given_up.bad_configuration)
        self._apply(self.fleet.stop_now(time.monotonic()))

    def _is_crash_loop(self, change: Change) -> bool:
        return change.after.state is State.WAITING and change.after.failures == self.deployment.rules.looping_after

    def _log_of(self, name: str) -> tuple[str, ...]:
        return tuple(logs.tail(logs.path_of(self.deployment.logs, name)))

    async def _watch(self, spec: ProcessSpec) -> None:
        contact = Contact(dialable(spec.endpoint))
        try:
            while True:
                await self._check(spec.name, contact)
                starting = self.fleet.processes[spec.name].state is State.STARTING
                await asyncio.sleep(_STARTING_CHECK_S if starting else _READY_CHECK_S)
        finally:
            await contact.close()

    async def _check(self, name: str, contact: Contact) -> None:
        pid = self.fleet.processes[name].pid
        if pid is None or self.fleet.processes[name].state not in _ALIVE:
            return
        health = await contact.health(_CHECK_TIMEOUT_S)
        if self.fleet.processes[name].pid != pid:
            return  # the answer of a process that is gone
        first = isinstance(health, Healthy) and self.fleet.processes[name].state is State.STARTING
        self._apply(self.fleet.handle(name, health, time.monotonic()))
        if first:
            await self._tell_costs(name, contact)
        if self._with_samples and isinstance(health, Healthy):
            stats = await contact.stats(_CHECK_TIMEOUT_S)
            if stats is not None and self.fleet.processes[name].pid == pid:
                self.samples.add(name, Sample(time.monotonic(), stats))

    async def _tell_costs(self, name: str, contact: Contact) -> None:
        told = await contact.describe(_CHECK_TIMEOUT_S)
        self.samples.wires[name] = told.wire
        if cost := told.facts.get("deterministic_cost"):
            self._tell(notices.of_deterministic(name, cost))
        if self.fleet.specs[name].role is Role.ROUTER:
            self._tell(notices.of_wire(name, told.wire))
