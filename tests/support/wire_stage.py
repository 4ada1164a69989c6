"""A stage for tests of the wire: real gRPC servers in this process, on sockets or ports, to be killed and reopened.

Tests are written against moe.wire.port; what makes the actors of an implementation stands in `Implementation`, so that
another implementation runs through the same tests, also mixed with this one.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from moe.aggregator.hosting import combiner_for
from moe.api.control.v1 import control_pb2
from moe.runtime.errors import StartupError
from moe.runtime.process import new_instance_id
from moe.runtime.server import Server, ServerSettings, Service
from moe.wire.choice import Wire, load
from moe.wire.ends import AggregatorEnd, RouterEnd
from moe.wire.grpcio import LoopThread, shared_loop
from moe.wire.port import (
    Batch,
    Combined,
    ExpertLimits,
    ExpertWire,
    Incomplete,
    LayerCall,
    Outcome,
    PartFailure,
    RouterWire,
    Target,
    WorkItem,
)
from moe.wire.settings import CombinerLimits, WireSettings
from support.layer_calls import HIDDEN, expected_rows, toy_partial
from torch import Tensor

PATIENCE_S = 30.0
_IN_BACKGROUND = ThreadPoolExecutor(8)


class Placement(Enum):
    """Where the combiner is, and by what means the streams run."""

    EMBEDDED = "embedded"
    UNIX = "unix"
    TCP = "tcp"


@dataclass(frozen=True)
class Implementation:
    """Whose actors play: each is a wire of moe.wire.choice."""

    name: str
    router: Wire
    expert: Wire
    aggregator: Wire

    def plays(self, placement: Placement) -> bool:
        """Whether this placement shows anything new of it."""
        if self.router is self.expert is self.aggregator:
            return True
        return placement is Placement.UNIX or (placement is Placement.EMBEDDED and self.router is not self.expert)


def _implementations() -> list[Implementation]:
    """grpcio; and where it is built the native wire, alone and each end of it among ends of grpcio, and the reverse."""
    grpcio = load("grpcio")
    alone = Implementation("grpcio", grpcio, grpcio, grpcio)
    try:
        native = load("native")
    except StartupError:
        return [alone]
    return [
        alone,
        Implementation("native", native, native, native),
        Implementation("native router", native, grpcio, grpcio),
        Implementation("native expert", grpcio, native, grpcio),
        Implementation("native aggregator", grpcio, grpcio, native),
        Implementation("grpcio aggregator", native, native, grpcio),
    ]


IMPLEMENTATIONS = _implementations()
GRPCIO = IMPLEMENTATIONS[0]


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Waits for a condition with a deadline."""
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen within {patience_s} s"
        time.sleep(0.002)


def toy_item(item: WorkItem) -> Tensor:
    """What the toy experts make of a work item."""
    return toy_partial(item.rows, item.slot_rows, item.slot_experts, item.slot_weights)


class ServedProcess:
    """A gRPC server that can be closed and opened again at the same address."""

    def __init__(self, loop: LoopThread, listen: str, settings: WireSettings | None = None) -> None:
        wire = settings or WireSettings()
        self._loop = loop
        self._keepalive = {"keepalive_s": wire.keepalive_s, "keepalive_timeout_s": wire.keepalive_timeout_s}
        self.endpoint = listen
        self._server: Server | None = None

    def open_with(self, name: str, services: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """Starts a server for what `make` makes on the loop: an object with `register`."""

        async def start() -> Any:
            actor = make()
            service = Service(
                name,
                services,
                actor.register,
                control_pb2.DescribeResponse,
                control_pb2.StatsResponse,
                on_drain=actor.drained,
                front=lambda: actor.front,
            )
            self._server = Server(service, ServerSettings(self.endpoint, drain_timeout_s=PATIENCE_S, **self._keepalive))
            await self._server.start()
            self.endpoint = self._server.target
            return actor

        return self._loop.run(start())

    def kill(self) -> None:
        """Ends the server at once: every stream breaks."""
        if self._server:
            server, self._server = self._server, None
            self._loop.run(server.stop())

    def drain(self) -> None:
        """Ends the server the polite way."""
        assert self._server is not None
        server, self._server = self._server, None

        async def end() -> None:
            server._lifecycle.drain()
            await server.drained()
            await server.stop()

        self._loop.run(end())


@dataclass
class ToyExpert:
    """An expert process: a compute thread over toy experts. compute: from a work item to its partial.

    raises: what each batch fails with. batches: all that were taken up.
    """

    loop: LoopThread
    listen: str
    experts: frozenset[int]
    implementation: Implementation
    limits: dict[str, int] = field(default_factory=dict)
    settings: WireSettings = field(default_factory=WireSettings)

    def __post_init__(self) -> None:
        self._gate = threading.Event()
        self._gate.set()
        self._held = threading.Event()
        self.compute: Callable[[WorkItem], Tensor] = toy_item
        self.raises: Exception | None = None
        self.batches: list[Batch] = []
        self._process = ServedProcess(self.loop, self.listen, self.settings)
        self._stopped = threading.Event()
        self.open()

    @property
    def endpoint(self) -> str:
        return self._process.endpoint

    def open(self) -> None:
        """Starts the process, as a new instance."""
        limits = ExpertLimits(HIDDEN, torch.float32, {0: self.experts, 1: self.experts}, **self.limits)
        self._stopped = threading.Event()
        self.instance = new_instance_id()
        self.wire: ExpertWire = self._process.open_with(
            "expert",
            ("moe.expert.v1.ExpertService",),
            lambda: self.implementation.expert.expert(limits, self.instance, self.settings),
        )
        self._thread = threading.Thread(target=self._compute, args=(self.wire, self._stopped), daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Computes nothing from now on; dispatches queue up."""
        self._held.clear()
        self._gate.clear()
        assert self._held.wait(PATIENCE_S)

    def release(self) -> None:
        """Computes again."""
        self._gate.set()

    def kill(self) -> None:
        """The process is gone, with all that it had accepted."""
        self._stopped.set()
        self._process.kill()
        self.release()
        self._thread.join()

    def drain(self) -> None:
        """The process finishes what it has and goes."""
        self._process.drain()
        self._stopped.set()
        self._thread.join()

    def _compute(self, wire: ExpertWire, stopped: threading.Event) -> None:
        while not stopped.is_set():
            if not self._gate.is_set():
                self._held.set()
                self._gate.wait()
            batch = wire.next_batch(0.02)
            if batch is None or stopped.is_set():
                continue
            self.batches.append(batch)
            if self.raises:
                wire.fail(batch, str(self.raises))
                continue
            wire.finish(batch, [self.compute(item).to(item.partial_dtype) for item in batch.items])


@dataclass
class ServedAggregator:
    """An aggregator process."""

    loop: LoopThread
    listen: str
    implementation: Implementation

    def __post_init__(self) -> None:
        self._process = ServedProcess(self.loop, self.listen)
        self._experts: Sequence[str] = ()
        self.open()

    @property
    def endpoint(self) -> str:
        return self._process.endpoint

    def open(self) -> None:
        """Starts the process, as a new instance."""
        wire = self.implementation.aggregator
        combiner = combiner_for(wire, CombinerLimits())
        self.server: AggregatorEnd = self._process.open_with(
            "aggregator",
            ("moe.aggregator.v1.AggregatorService",),
            lambda: wire.aggregator(combiner, "agg-0", new_instance_id()),
        )
        self.set_experts(self._experts)

    def set_experts(self, endpoints: Sequence[str]) -> None:
        self._experts = endpoints
        self.server.set_experts(endpoints)

    def kill(self) -> None:
        """The process is gone, with all that it had collected."""
        self._process.kill()
        self.loop.run(self.server.close())


class Stage:
    """Actors on one loop, by placement; all end with the stage."""

    def __init__(self, placement: Placement, directory: Path, implementation: Implementation = GRPCIO) -> None:
        self.placement = placement
        self.loop = shared_loop()
        self._directory = directory
        self._implementation = implementation
        self._numbers = itertools.count()
        self.experts: list[ToyExpert] = []
        self.aggregators: list[ServedAggregator] = []
        self.routers: list[RouterEnd] = []

    def expert(self, *experts: int, settings: WireSettings | None = None, **limits: int) -> ToyExpert:
        made = ToyExpert(
            self.loop,
            self._address(),
            frozenset(experts),
            self._implementation,
            limits,
            settings or WireSettings(),
        )
        self.experts.append(made)
        return made

    def aggregator(self) -> ServedAggregator | None:
        """An aggregator that collects from all experts so far; None where the router has it inside."""
        if self.placement is Placement.EMBEDDED:
            return None
        made = ServedAggregator(self.loop, self._address(), self._implementation)
        made.set_experts([expert.endpoint for expert in self.experts])
        self.aggregators.append(made)
        return made

    def router(self, **settings: Any) -> RouterWire:
        """A router that knows all experts and aggregators so far."""
        wire = self._implementation.router
        inside = combiner_for(wire, CombinerLimits()) if self.placement is Placement.EMBEDDED else None
        made = wire.router("router-0", combiner=inside, loop=self.loop.loop, **settings)
        made.set_endpoints([e.endpoint for e in self.experts], [a.endpoint for a in self.aggregators])
        self.routers.append(made)
        return made

    def attempts(self, endpoints: "dict[int, Sequence[str]] | None" = None, **router: Any) -> "Attempts":
        """A router with its aggregator. endpoints: by part; each expert so far is a part by default."""
        aggregator = self.aggregator()
        places = endpoints or {part: [expert.endpoint] for part, expert in enumerate(self.experts)}
        return Attempts(self.router(**router), places, aggregator.endpoint if aggregator else None)

    def close(self) -> None:
        for router in self.routers:
            router.close()
        for aggregator in self.aggregators:
            with contextlib.suppress(Exception):
                aggregator.kill()
        for expert in self.experts:
            expert.kill()

    def _address(self) -> str:
        if self.placement is Placement.TCP:
            return "127.0.0.1:0"
        return f"unix:{self._directory}/{next(self._numbers)}.sock"


@dataclass
class Attempts:
    """A small router: sends parts again until the call ends. failures: all that it met on the way."""

    router: RouterWire
    endpoints: dict[int, Sequence[str]]
    aggregator: str | None
    failures: list[PartFailure] = field(default_factory=list)

    def run(self, call: LayerCall) -> Outcome:
        """Tries each part's endpoints in turn until there is an outcome."""
        wanted = [part.part for part in call.parts]
        turns = {part: itertools.cycle(self.endpoints[part]) for part in wanted}
        while True:
            outcome = self._exchange(call, [Target(part, next(turns[part])) for part in wanted])
            if not isinstance(outcome, Incomplete):
                return outcome
            self.failures += outcome.failures
            wanted = [failure.part for failure in outcome.failures]
            if wanted:
                time.sleep(0.01)

    def start(self, call: LayerCall) -> "Future[Outcome]":
        """`run` in a thread of its own."""
        return _IN_BACKGROUND.submit(self.run, call)

    def _exchange(self, call: LayerCall, targets: Sequence[Target]) -> Outcome:
        return self.router.exchange(call, targets, self.aggregator, call.deadline)


GROUPS = [[0, 1], [2], [3, 4]]
"""Three expert groups of five experts."""


def three_groups(stage: Stage, **router: Any) -> Attempts:
    """A router over one expert process for each of GROUPS."""
    for group in GROUPS:
        stage.expert(*group)
    return stage.attempts(**router)


def combined(outcome: Outcome) -> Combined:
    """The outcome, which has to be an answer."""
    assert isinstance(outcome, Combined), outcome
    return outcome


def assert_adds_up(outcome: Outcome, call: LayerCall, without: Sequence[int] = ()) -> None:
    """The outcome is the sum of the call's weighted experts; float32 sums in another order are off by some 1e-6."""
    assert_close(combined(outcome).rows, expected_rows(call, without))


def assert_close(got: Tensor, want: Tensor) -> None:
    """Equal but for rounding. torch.testing would do, but importing it takes ten seconds."""
    assert got.shape == want.shape
    assert float((got - want).abs().max()) <= 1e-5 * max(1.0, float(want.abs().max())), (got, want)
