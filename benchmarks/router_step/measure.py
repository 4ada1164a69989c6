"""Runs an engine over a loop-back wire and times its steps, whole and by stage."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from moe.discovery.directory import ExpertReplica, Snapshot
from moe.models.backbone import TransformersBackbone
from moe.models.backbone.step_cache import StepCache
from moe.router import engine as engine_module
from moe.router import layer_call, remote_experts, settling
from moe.router.domain import Generation, SamplingParameters
from moe.router.engine import Engine, EngineSettings
from moe.router.fleet import FleetTracker
from moe.router.layer_call import CallSettings, LayerCaller
from moe.router.outlet import Item
from moe.router.scheduler import ScheduleLimits
from moe.runtime.errors import MoeError
from moe.wire.port import Combined, Incomplete, LayerCall, MissingPolicy, Outcome, RouterWire, Target
from torch import nn

from benchmarks.alone import FixedDirectory, PeerlessWire
from benchmarks.router_step.stopwatch import Stage, Stopwatch

WARM_STEPS = 10
LAYER_CALL = "layer call: parts, replicas"
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Measured:
    """step_s: median of a step without stopwatches. stages: with them."""

    rows: int
    step_s: float
    stages: list[Stage]

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return asdict(self)


class LoopbackWire(PeerlessWire):
    """Answers every layer call at once with its own rows."""

    name = "loop-back"

    def exchange(self, call: LayerCall, targets: Sequence[Target], aggregator: str | None, until: float) -> Outcome:
        """See RouterWire."""
        return Incomplete() if targets and until <= time.monotonic() else Combined(call.hidden)


def everywhere(experts: int) -> FixedDirectory:
    """One replica for each expert."""
    replicas = tuple(ExpertReplica(f"e{i}-0", f"e{i}", (i,), f"e{i}-0", ready=True) for i in range(experts))
    return FixedDirectory(Snapshot(1, "benchmark", replicas))


class Sink:
    """Takes an answer's pieces."""

    def __init__(self) -> None:
        self.error: MoeError | None = None

    full = False

    def put(self, item: Item) -> None:
        """Drops it."""

    def fail(self, error: MoeError) -> None:
        """Keeps it for the program to end with."""
        self.error = error


@dataclass(frozen=True)
class Calls:
    """How layer calls are made. begins, ends: called around the steps that are timed without stopwatches."""

    caller: LayerCaller
    wire: RouterWire
    stage: str
    begins: Callable[[], None] = lambda: None
    ends: Callable[[], None] = lambda: None


def loopback(experts: int) -> Calls:
    """Answered at once, with the rows themselves."""
    wire = LoopbackWire()
    settings = CallSettings(MissingPolicy.WAIT, 60.0, True)
    return Calls(LayerCaller(wire, FleetTracker(everywhere(experts), experts), settings), wire, "wire (loop-back)")


class _Run:
    """An engine whose steps are timed. watch: its stopwatch, running after the warm steps of the second half."""

    def __init__(
        self, backbone: TransformersBackbone, rows: int, steps: int, context: int, watch: Stopwatch, calls: Calls
    ) -> None:
        schedule = ScheduleLimits(rows, 2**30, 0, 2**20, 1)
        self.engine = Engine(backbone, calls.caller, EngineSettings(schedule, 60.0))
        self._steps, self._rows, self._context = steps, rows, context
        self._watch, self._calls, self.times = watch, calls, list[float]()
        turn: Any = self.engine._turn
        self.engine._turn = self._timed(watch.wrap("engine: schedule, pack, settle, pieces", turn))  # type: ignore[method-assign]

    def _timed(self, turn: Any) -> Any:
        def timed() -> bool:
            if len(self.times) == WARM_STEPS:
                self._calls.begins()
            elif len(self.times) == WARM_STEPS + self._steps:
                self._calls.ends()
            self._watch.running = WARM_STEPS + self._steps <= len(self.times) < WARM_STEPS + 2 * self._steps
            begin = time.perf_counter()
            going = turn()
            self.times.append(time.perf_counter() - begin)
            return bool(going)

        return timed

    def go(self, temperature: float) -> float:
        """Median seconds of the steps without stopwatches."""
        count = WARM_STEPS + 2 * self._steps + 2
        sinks = [Sink() for _ in range(self._rows)]
        for seed, sink in enumerate(sinks):
            prompt = tuple(torch.randint(3, 1000, (self._context,)).tolist())
            sampling = SamplingParameters(temperature=temperature, top_p=0.95 if temperature else 1.0, seed=seed)
            self.engine.submit(Generation(prompt, sampling, count, logprobs=None), sink)
        self.engine.start()
        until = time.monotonic() + _PATIENCE_S
        while len(self.times) < count and time.monotonic() < until and not any(sink.error for sink in sinks):
            time.sleep(0.05)
        self.engine.stop("measured")
        if len(self.times) < count:
            raise SystemExit(f"error: the engine made {len(self.times)} of {count} steps: {sinks[0].error}")
        return median(self.times[WARM_STEPS : WARM_STEPS + self._steps])


def measure(
    backbone: TransformersBackbone,
    rows: int,
    steps: int,
    context: int,
    temperature: float,
    calls: Calls | None = None,
) -> Measured:
    """The steps of `rows` requests that decode. The backbone's cache is reallocated. calls: None for `loopback`."""
    watch = Stopwatch()
    calls = calls or loopback(max(backbone.info.moe_layers.values()))
    backbone.allocate(rows, context + WARM_STEPS + 2 * steps + 8)
    undo = _watch_everything(backbone, watch, calls)
    try:
        run = _Run(backbone, rows, steps, context, watch, calls)
        seconds = run.go(temperature)
    finally:
        for owner, name, before in reversed(undo):
            setattr(owner, name, before)
    return Measured(rows, seconds, watch.stages(steps))


def _watch_everything(backbone: TransformersBackbone, watch: Stopwatch, calls: Calls) -> list[tuple[Any, str, Any]]:
    """Puts stopwatches around the stages; gives what is to be put back."""
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, stage: str) -> None:
        before = getattr(owner, name)
        undo.append((owner, name, before))
        setattr(owner, name, watch.wrap(stage, before))

    model = backbone._model
    gates = {id(gate.module) for gate in backbone.gates.values()}
    for name, module in model.named_modules():
        stage = _stage(name, module, gates)
        if stage:
            put(module, "forward", stage)
    put(backbone, "step", "backbone: checks, its own Python")
    put(backbone, "_forward", "backbone: library's Python, residuals")
    put(StepCache, "attend", "attention")
    put(StepCache, "update", "cache: write")
    put(remote_experts, "plan_parts", "dispatch plan")
    put(layer_call, "plan_parts", "dispatch plan")
    put(remote_experts.RemoteExperts, "overlap", "experts: owners, counts, checks")
    put(layer_call.LayerCaller, "run", LAYER_CALL)
    put(layer_call.LayerCaller, "run_routed", LAYER_CALL)
    for name in ("exchange", "exchange_routed"):
        if hasattr(calls.wire, name):
            put(type(calls.wire), name, calls.stage)
    put(settling, "sample", "sampling")
    put(engine_module, "settle", "settle: scores, pieces")
    put(engine_module, "pack", "pack")
    return undo


def _stage(name: str, module: nn.Module, gates: set[int]) -> str | None:
    kind = type(module).__name__
    if id(module) in gates:
        return "gate"
    if name.endswith("lm_head"):
        return "linear: LM head"
    if isinstance(module, nn.Linear):
        return "linear: layers"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if "Norm" in kind:
        return "norms"
    if "Rotary" in kind:
        return "rotary frequencies"
    if kind.endswith("Attention"):
        return "attention: library's Python, rotary"
    return None
