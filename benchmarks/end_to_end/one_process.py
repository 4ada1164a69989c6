"""Our own path without any hop: front desk, engine, backbone and all experts in one process.

    python -m benchmarks.end_to_end.one_process --package DIR --listen ADDRESS --threads N ...

The router's own parts around a wire that computes at once: what is left between this and a deployment is the price of
distribution. It takes the router's settings; the experts' threads are the router's.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from moe.api.control.v1 import control_pb2
from moe.api.inference.v1 import inference_pb2, inference_pb2_grpc
from moe.discovery.directory import ExpertReplica, Snapshot
from moe.expert.compute import compute
from moe.expert.packing import Computation, PackedWeights
from moe.expert.startup import Startup
from moe.models.package import Package
from moe.router.engine import Engine, EngineSettings
from moe.router.fleet import FleetTracker
from moe.router.front_desk import DeskTools, FrontDesk
from moe.router.layer_call import CallSettings, LayerCaller
from moe.router.loading import load_model, model_message, open_package
from moe.router.requests import RequestReader
from moe.router.settings import RouterSettings
from moe.runtime.lifecycle import Lifecycle
from moe.runtime.program import run_program
from moe.runtime.server import Service
from moe.wire.port import Combined, LayerCall, MissingPolicy, Outcome, Part, RoutedCall, Target, WorkItem

from benchmarks.alone import FixedDirectory, PeerlessWire

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name


class LocalWire(PeerlessWire):
    """Implements moe.wire.port.RouterWire and RoutedWire: computes at once, on the calling thread. One group."""

    name = "none"

    def __init__(self, weights: PackedWeights) -> None:
        self._weights = weights

    def exchange(self, call: LayerCall, targets: Sequence[Target], aggregator: str | None, until: float) -> Outcome:
        """See RouterWire. Parts are added in float32 when there are several, as by a combiner."""
        partials = [self._partial(call, part) for part in call.parts]
        if len(partials) == 1 and len(partials[0]) == len(call.hidden):
            return Combined(partials[0].to(call.hidden.dtype))
        rows = torch.zeros(call.hidden.shape)
        for part, partial in zip(call.parts, partials, strict=True):
            rows.index_add_(0, part.token_index, partial.float())
        return Combined(rows.to(call.hidden.dtype))

    def exchange_routed(self, call: RoutedCall, until: float) -> Outcome | None:
        """See RoutedWire. One group is all experts: there is nothing to cut, unless slots were dropped."""
        index = call.index.reshape(-1).to(torch.int32)
        if int(index.max()) >= call.experts:
            return None
        rows = torch.arange(len(call.hidden), dtype=torch.int32).repeat_interleave(call.index.shape[1])
        slots = (rows, index, call.weights.reshape(-1))
        dtype = call.partial_dtype or call.hidden.dtype
        item = WorkItem(call.call_id, call.layer, 0, "", call.hidden, *slots, dtype, None)
        return Combined(compute((item,), self._weights).partials[0].to(call.hidden.dtype))

    def _partial(self, call: LayerCall, part: Part) -> torch.Tensor:
        every = len(part.token_index) == len(call.hidden)
        rows = call.hidden if every else call.hidden.index_select(0, part.token_index)
        dtype = call.partial_dtype or call.hidden.dtype
        slots = (part.slot_rows, part.slot_experts, part.slot_weights)
        item = WorkItem(call.call_id, call.layer, part.part, "", rows, *slots, dtype, None)
        return compute((item,), self._weights).partials[0]


def local_calls(package: Package, dtype: str, threads: int, timeout_s: float) -> tuple[LayerCaller, LocalWire]:
    """Layer calls over all experts of a package, which are loaded into this process."""
    experts = package.manifest.expert_count
    wire = LocalWire(Startup(package, tuple(range(experts)), dtype, Computation()).run(threads))
    fleet = FleetTracker(_here(package.manifest.name, experts), experts)
    return LayerCaller(wire, fleet, CallSettings(MissingPolicy.WAIT, timeout_s, embedded=True)), wire


def _here(model: str, experts: int) -> FixedDirectory:
    """One group, which is this process and always ready."""
    here = ExpertReplica("here-0", "here", tuple(range(experts)), "here", ready=True)
    return FixedDirectory(Snapshot(1, model, (here,)))


class OneProcess:
    """The process."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._package = open_package(settings)
        self._executor = ThreadPoolExecutor(1)
        self._desk = FrontDesk(settings.name, stall_s=60.0, executor=self._executor)
        self._lifecycle = Lifecycle()
        self._engine: Engine | None = None

    def service(self) -> Service:
        """What the runtime's server runs."""
        return Service(
            self._settings.name,
            (_SERVICE,),
            lambda server: inference_pb2_grpc.add_InferenceServiceServicer_to_server(self._desk, server),
            control_pb2.DescribeResponse,
            control_pb2.StatsResponse,
            startup=self._start,
            on_stop=self._stop,
            lifecycle=self._lifecycle,
        )

    async def _start(self) -> None:
        settings = self._settings
        caller, _ = local_calls(self._package, settings.dtype, settings.threads, settings.layer_timeout_s)
        model = load_model(self._package, settings)
        engine = Engine(
            model.backbone, caller, EngineSettings(model.schedule, 60.0), model.tokenizer, self._lifecycle.fail
        )
        engine.start()
        self._engine = engine
        reader = RequestReader(model.limits, model.tokenizer)
        self._desk.open(DeskTools(engine, reader, model.tokenizer, model_message(self._package, model)))

    async def _stop(self) -> None:
        if self._engine:
            self._engine.stop(f"{self._settings.name} has stopped")
        self._executor.shutdown(wait=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until it is ended."""
    return run_program(
        RouterSettings,
        lambda settings: OneProcess(settings).service(),
        argv,
        prog="one-process",
        description="Serves a model package from one process, to measure what distribution costs.",
    )


if __name__ == "__main__":
    sys.exit(main())
