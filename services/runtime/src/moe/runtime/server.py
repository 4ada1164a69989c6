"""A service's server from start to drained: listening, health, reflection, control, signals and the way out.

A service says what it serves in a `Service`; `run` does the rest. The way out, begun by SIGTERM, SIGINT or
moe.control.v1 Drain: health turns NOT_SERVING, new calls are refused, `on_drain` ends the service's long-lived
streams, calls in flight may finish until the drain time-out and are then cancelled, `on_stop` releases what is held.
A second signal cuts the waiting short.
"""

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from moe.api.control.v1 import control_pb2, control_pb2_grpc
from moe.runtime import addresses
from moe.runtime.addresses import Address
from moe.runtime.control import ControlServicer, Describe, Stats
from moe.runtime.entry import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OK
from moe.runtime.errors import StartupError
from moe.runtime.front import Front, PrivateSocket, listen
from moe.runtime.interception import Interceptor
from moe.runtime.lifecycle import InFlight, Lifecycle
from moe.runtime.metrics import Reading
from moe.runtime.process import new_instance_id
from moe.runtime.progress import Progress
from moe.runtime.server_settings import ServerSettings, server_options

__all__ = ["STARTED", "Lifecycle", "Server", "ServerSettings", "Service", "run", "serve"]

logger = logging.getLogger("moe.server")

Hook = Callable[[], Awaitable[None]]
_CONTROL = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name
STARTED = "moe.started"
"""A name in health beside the services': SERVING once start-up is over and for as long as the serving loop turns.

A service that waits for others, as a router without experts does, is not ready and yet nothing to start again. Kubelets
ask for this name to know that loading is over, and later that the process still turns: the server's own loop, by
answering, and the thread that computes, by its `Progress`.
"""

_LOOK_S = 1.0
"""How often the serving loop's progress is looked at."""

_LAST_WRITES_S = 1.0
"""Time for statuses of ended calls to leave before the server closes."""


@dataclass(frozen=True)
class Service:
    """What a process serves. describe and stats have to be cheap and safe to call from any thread.

    name: in the plan. services: full names of the gRPC services that `register` adds to a server. startup: work
    after the port is open and before it is ready, such as checking weights; it may raise StartupError. When
    `ready_after_startup` is False the service calls `lifecycle.set_ready` itself, as what it needs comes and goes.
    progress: of the loop that does the work, if that is not the server's own.
    on_drain: has to end the streams that never end by themselves. on_stop: runs last, always. front: asked once
    `register` was called for what takes the address in the gRPC server's place; None for the server itself.
    readings: metrics that stats don't have.
    """

    name: str
    services: tuple[str, ...]
    register: Callable[[grpc.aio.Server], None]
    describe: Describe
    stats: Stats
    startup: Hook | None = None
    on_drain: Hook | None = None
    on_stop: Hook | None = None
    ready_after_startup: bool = True
    progress: Progress | None = None
    front: Callable[[], Front | None] | None = None
    readings: Callable[[], Iterable[Reading]] | None = None
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    instance: str = field(default_factory=new_instance_id)


def run(service: Service, settings: ServerSettings) -> int:
    """Serves until drained, on a new uvloop loop in this thread; returns the exit code. Raises StartupError."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(service, settings))


async def serve(service: Service, settings: ServerSettings) -> int:
    """Serves until drained; returns the exit code: 0, 130 after SIGINT, 1 after `lifecycle.fail`.

    Raises StartupError, or whatever `startup` raised.
    """
    server = Server(service, settings)
    with _signals(server):
        try:
            await server.start()
            await server.drained()
        finally:
            await server.stop()
    failure = service.lifecycle.failure
    if isinstance(failure, StartupError):
        raise failure
    if failure is not None:
        logger.error("%s ends because of a failure", service.name, exc_info=failure)
        return EXIT_FAILURE
    return EXIT_INTERRUPTED if server.interrupted else EXIT_OK


class Server:
    """One serving process: `start`, then `drained`, then `stop`, always. Made and used inside its loop."""

    def __init__(self, service: Service, settings: ServerSettings) -> None:
        self.interrupted = False
        self._service = service
        self._settings = settings
        self._lifecycle = service.lifecycle
        self._in_flight = InFlight()
        self._health = health.aio.HealthServicer()
        self._started = False
        self._changed = asyncio.Event()
        self._drain_begun = asyncio.Event()
        self._hurried = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self._address: Address | None = None
        self._front: Front | None = None
        self._behind: PrivateSocket | None = None
        self._loop = asyncio.get_running_loop()
        interceptor = Interceptor(service.name, self._lifecycle, self._in_flight)
        self._server = grpc.aio.server(interceptors=[interceptor], options=server_options(settings))

    @property
    def target(self) -> str:
        """The gRPC target to dial, with the real port once started."""
        return self._address.target if self._address else self._settings.listen

    async def start(self) -> None:
        """Opens the port and begins the service's start-up. Raises StartupError when the address can't be had."""
        wanted = addresses.parse(self._settings.listen)
        self._register()
        await self._publish()
        await self._open(wanted)
        self._lifecycle.subscribe(self._on_change)
        works = (self._follow(), self._start_up(), self._watch_progress())
        self._background = [asyncio.create_task(work) for work in works]
        logger.info("%s listens on %s", self._service.name, self.target)

    async def _open(self, wanted: Address) -> None:
        """Listens: the gRPC server itself, or what the service has in front of it."""
        self._front = self._service.front() if self._service.front else None
        if self._front is None:
            self._address = addresses.bind(wanted, self._server.add_insecure_port)
            await self._server.start()
            return
        self._behind = PrivateSocket()
        self._server.add_insecure_port(self._behind.target)
        await self._server.start()
        self._address, listener = listen(wanted)
        self._front.serve(listener, self._behind.target)

    async def drained(self) -> None:
        """Returns when drain was begun and calls in flight have finished or the drain time-out has passed."""
        await self._drain_begun.wait()
        until = time.monotonic() + self._settings.drain_timeout_s
        logger.info("%s drains for up to %.1f s", self._service.name, self._settings.drain_timeout_s)
        if self._service.on_drain and not await self._patiently(self._service.on_drain(), until):
            logger.warning("%s: on_drain did not finish in time", self._service.name)
        if not await self._patiently(self._in_flight.wait_idle(), until):
            logger.warning("%s cuts off %s", self._service.name, ", ".join(self._in_flight.methods()))

    async def stop(self) -> None:
        """Cancels whatever still runs and releases the address."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._in_flight.hang_up_auxiliary()
        try:
            await self._server.stop(None if self._in_flight.methods() else _LAST_WRITES_S)
            if self._front:
                await self._front.stop()
            if self._service.on_stop:
                await self._service.on_stop()
        finally:
            if self._address:
                addresses.remove(self._address)
            if self._behind:
                self._behind.remove()

    def interrupt(self, number: signal.Signals) -> None:
        """A signal came: the first one drains, a second one cuts the waiting short."""
        if self._drain_begun.is_set() or self._lifecycle.draining:
            self._hurried.set()
        self.interrupted = self.interrupted or number == signal.SIGINT
        self._lifecycle.drain()

    def _register(self) -> None:
        control = ControlServicer(
            self._service.describe, self._service.stats, self._lifecycle.drain, instance=self._service.instance
        )
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._service.register(self._server)
        names = (*self._service.services, _CONTROL, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def _start_up(self) -> None:
        """Runs the service's own start-up; what it raises ends the process."""
        try:
            if self._service.startup:
                await self._service.startup()
            self._started = True
            await self._publish()
            if self._service.ready_after_startup:
                self._lifecycle.set_ready(True)
        except Exception as error:
            self._lifecycle.fail(error)

    def _on_change(self) -> None:
        """From any thread. After the loop's end nobody listens any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._changed.set)

    async def _follow(self) -> None:
        """Publishes every change of the lifecycle."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._publish()
            if self._lifecycle.draining:
                self._drain_begun.set()

    async def _publish(self) -> None:
        turning = self._started and not self._lifecycle.stuck
        await self._health.set(STARTED, _status(turning))
        for name in ("", *self._service.services):
            await self._health.set(name, _status(self._lifecycle.ready))

    async def _watch_progress(self) -> None:
        """Says so, and where, when the serving loop hangs, and when it goes on after all."""
        progress = self._service.progress
        while progress:
            reason = progress.stuck()
            if bool(reason) != self._lifecycle.stuck:
                self._lifecycle.set_stuck(bool(reason))
                if reason:
                    logger.critical("%s hangs: %s; it is at\n%s", self._service.name, reason, progress.where())
                else:
                    logger.warning("%s goes on", self._service.name)
            await asyncio.sleep(_LOOK_S)

    async def _patiently(self, work: Awaitable[None], until: float) -> bool:
        """Awaits the work until a moment of time.monotonic() or a second signal; False when it was cut off."""
        task = asyncio.ensure_future(work)
        hurried = asyncio.create_task(self._hurried.wait())
        patience = max(until - time.monotonic(), 0.0)
        await asyncio.wait({task, hurried}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finished = task.done()
        for each in (task, hurried):
            each.cancel()
        await asyncio.gather(hurried, task, return_exceptions=True)
        if finished and not task.cancelled() and task.exception():
            logger.error("%s: on_drain failed", self._service.name, exc_info=task.exception())
        return finished


def _status(serving: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    return health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING


@contextlib.contextmanager
def _signals(server: Server) -> Iterator[None]:
    """SIGTERM and SIGINT drain the server; only in the main thread, the one that gets signals."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    for number in numbers:
        loop.add_signal_handler(number, server.interrupt, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
