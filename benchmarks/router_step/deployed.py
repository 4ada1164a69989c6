"""A layer call over real expert processes beside the same call in one process: where the tax of distribution goes.

Both run in turns in this process over one backbone, with the combiner inside the router. What an expert's kernel takes
is told by the experts' own Stats; CPU and context switches come from /proc, of the steps without stopwatches.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import torch
from moe.aggregator.hosting import combiner_for
from moe.api.control.v1 import control_pb2, control_pb2_grpc
from moe.discovery.directory import ExpertReplica, Snapshot
from moe.models.backbone import TransformersBackbone
from moe.models.package import Package
from moe.operator.planner.threads import PARTS_ENVIRONMENT, thread_budget
from moe.router.fleet import FleetTracker
from moe.router.layer_call import CallSettings, LayerCaller
from moe.runtime.process import available_cores, settle_memory
from moe.runtime.server_settings import client_options
from moe.wire.choice import load
from moe.wire.port import MissingPolicy
from moe.wire.settings import CombinerLimits, WireSettings

from benchmarks.alone import FixedDirectory
from benchmarks.cpu_time import context_switches, cpu_seconds
from benchmarks.end_to_end.one_process import local_calls
from benchmarks.figures import median
from benchmarks.processes import Processes
from benchmarks.router_step.measure import LAYER_CALL, Calls, Measured, measure

WIRE = "wire: exchange"
_TIMEOUT_S = 60.0
_DISPATCH = ("experts: owners, counts, checks", LAYER_CALL, "dispatch plan")


@dataclass(frozen=True)
class Reading:
    """Of processes, so far. switches: of all their threads, given up and taken away. kernel_s: of `parts` batches."""

    cpu_s: float
    switches: int
    parts: int = 0
    kernel_s: float = 0.0

    def since(self, before: "Reading", calls: int) -> "PerCall":
        """What came to pass, by layer call."""
        parts = self.parts - before.parts
        return PerCall(
            cpu_us=(self.cpu_s - before.cpu_s) / calls * 1e6,
            switches=(self.switches - before.switches) / calls,
            parts=parts / calls,
            kernel_us=(self.kernel_s - before.kernel_s) / parts * 1e6 if parts else 0.0,
        )


@dataclass(frozen=True)
class PerCall:
    """parts: a layer call has, as batches that experts computed. kernel_us: of one of them, mean."""

    cpu_us: float
    switches: float
    parts: float
    kernel_us: float


@dataclass(frozen=True)
class Side:
    """Microseconds a layer call, medians over the rounds. step: over the layers. dispatch: Python between backbone and
    wire. exchange: from the wire's first touch to the answer."""

    step: float
    backbone: float
    dispatch: float
    exchange: float
    router: PerCall
    experts: PerCall

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return asdict(self)


class _Watched:
    """Readings of the router (this process) and the experts around the timed steps."""

    def __init__(self, pids: Sequence[int], endpoints: Sequence[str]) -> None:
        self._pids, self._endpoints = pids, endpoints
        self.taken: list[tuple[Reading, Reading]] = []

    def take(self) -> None:
        """Now."""
        parts, kernel_s = _stats(self._endpoints)
        mine = Reading(cpu_seconds([os.getpid()]), context_switches([os.getpid()]))
        self.taken.append((mine, Reading(cpu_seconds(self._pids), context_switches(self._pids), parts, kernel_s)))

    def per_call(self, calls: int) -> tuple[PerCall, PerCall]:
        """Of the router and of the experts."""
        (mine, theirs), (mine_after, theirs_after) = self.taken[-2:]
        return mine_after.since(mine, calls), theirs_after.since(theirs, calls)


def _stats(endpoints: Sequence[str]) -> tuple[int, float]:
    batches, busy_s = 0, 0.0
    for endpoint in endpoints:
        with grpc.insecure_channel(endpoint, options=client_options()) as channel:
            expert = control_pb2_grpc.ControlServiceStub(channel).Stats(control_pb2.StatsRequest()).expert
        batches, busy_s = batches + expert.batches, busy_s + expert.busy_s
    return batches, busy_s


@contextmanager
def _processes(package: Package, groups: int, wire_name: str, started: Processes) -> Iterator[tuple[Calls, _Watched]]:
    experts = package.manifest.expert_count
    budget = thread_budget(available_cores(), groups)
    environment = {**PARTS_ENVIRONMENT, **budget.environment}
    replicas = []
    for group in range(groups):
        name, held = f"g{group}", tuple(each for each in range(experts) if each * groups // experts == group)
        endpoint = f"unix:{started.folder}/{name}.sock"
        ids = ",".join(map(str, held))
        words = ["--package", str(package.path), "--experts", ids, "--name", f"{name}-0", "--group", name]
        words += ["--listen", endpoint, "--threads", str(budget.expert), "--wire", wire_name]
        started.start(name, "moe.expert", words, environment)
        started.wait_ready(name, endpoint)
        replicas.append(ExpertReplica(f"{name}-0", name, held, endpoint, ready=True))
    implementation = load(wire_name)
    wire = implementation.router(
        "router-0", combiner=combiner_for(implementation, CombinerLimits()), settings=WireSettings()
    )
    tracker = FleetTracker(FixedDirectory(Snapshot(1, package.manifest.name, tuple(replicas))), experts)
    watched = _Watched(started.pids, [replica.endpoint for replica in replicas])
    caller = LayerCaller(wire, tracker, CallSettings(MissingPolicy.WAIT, _TIMEOUT_S, embedded=True))
    try:
        yield Calls(caller, wire, WIRE, watched.take, watched.take), watched
    finally:
        wire.close()


Sides = dict[str, tuple[Calls, _Watched]]


@contextmanager
def deployed(package: Package, groups: int, wire_name: str, started: Processes) -> Iterator[Sides]:
    """`one process` and `deployed`, ready to be measured. Holds the experts' weights twice."""
    with _processes(package, groups, wire_name, started) as theirs:
        caller, wire = local_calls(package, "auto", torch.get_num_threads(), _TIMEOUT_S)
        alone = _Watched((), ())
        settle_memory()
        yield {"one process": (Calls(caller, wire, WIRE, alone.take, alone.take), alone), "deployed": theirs}


def compare(
    backbone: TransformersBackbone, sides: Sides, *, rows: int, steps: int, context: int, rounds: int
) -> dict[str, Side]:
    """Both in turns, every second round backwards."""
    seen: dict[str, list[Side]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else list(reversed(sides)):
            calls, watched = sides[name]
            measured = measure(backbone, rows, steps, context, 0.0, calls)
            seen[name].append(_side(measured, watched, len(backbone.info.moe_layers), steps))
    return {name: _middle(each) for name, each in seen.items()}


def _side(measured: Measured, watched: _Watched, layers: int, steps: int) -> Side:
    us = {stage.name: stage.seconds / layers * 1e6 for stage in measured.stages}
    router, experts = watched.per_call(layers * steps)
    dispatch, exchange = sum(us.get(name, 0.0) for name in _DISPATCH), us[WIRE]
    return Side(
        measured.step_s / layers * 1e6, sum(us.values()) - dispatch - exchange, dispatch, exchange, router, experts
    )


def _middle(sides: Sequence[Any]) -> Any:
    """Field by field the median."""
    first = sides[0]
    if not isinstance(first, Side | PerCall):
        return median(sides)
    fields = {name: _middle([getattr(side, name) for side in sides]) for name in vars(first)}
    return type(first)(**fields)


def lines(sides: dict[str, Side]) -> list[str]:
    """The division, for people."""
    one, far = sides["one process"], sides["deployed"]
    kernel = far.experts.kernel_us
    rows = [
        ("step, without stopwatches", one.step, far.step),
        ("backbone, sampling, engine", one.backbone, far.backbone),
        ("layer call's Python before and after the wire", one.dispatch, far.dispatch),
        ("exchange", one.exchange, far.exchange),
        ("  kernel of one part, mean", None, kernel),
        ("  the rest: hop, wake-ups, the slower part", None, far.exchange - kernel),
        ("CPU of the router", one.router.cpu_us, far.router.cpu_us),
        ("CPU of the experts", None, far.experts.cpu_us),
    ]
    told = [f"  {'µs a layer call':<48}{'one process':>12}{'deployed':>12}{'difference':>12}"]
    for name, here, there in rows:
        cells = ["-" if value is None else f"{value:.0f}" for value in (here, there)]
        cells.append("-" if here is None else f"{there - here:+.0f}")
        told.append(f"  {name:<48}" + "".join(f"{cell:>12}" for cell in cells))
    told.append(
        f"  parts a call {far.experts.parts:.2f}; context switches a call: router {far.router.switches:.1f} "
        f"(one process {one.router.switches:.1f}), experts {far.experts.switches:.1f}"
    )
    return told
