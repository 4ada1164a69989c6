"""What a layer call costs: through the router's port, against real processes that compute nothing, on unix sockets.

    python -m benchmarks.layer_call --wire grpcio --wire native --groups 1 2 8 --tokens 1 16 256 2048

A call goes from a layer's rows and routing to the sums, as the router makes it: the native wire cuts the routing into
parts itself, for the other they are cut within the call. Every implementation is up at once and they take turns, so
that a ratio compares neighbours in time. `cold` puts 0.6 ms of other work, which streams 8 MB through the caches,
between two calls, as attention does. CPU is of all processes. A row goes to two of sixteen experts; eight random
routings take turns.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
from moe.aggregator.hosting import combiner_for
from moe.router.dispatch import plan_parts
from moe.wire.port import (
    Combined,
    LayerCall,
    MissingPolicy,
    Outcome,
    Places,
    RoutedCall,
    RoutedWire,
    RouterWire,
    Target,
)
from moe.wire.settings import CombinerLimits, WireSettings

from benchmarks.cpu_time import cpu_seconds
from benchmarks.document import fenced, publish
from benchmarks.figures import median, paired_ratio, percentile
from benchmarks.machine import this_machine
from benchmarks.processes import Processes, processes
from benchmarks.tables import number, table
from benchmarks.wires import WIRES, AbsentError, wire

_EXPERTS, _TOPK, _HIDDEN = 16, 2, 1024
_CALLS = {1: 400, 16: 300, 256: 80, 2048: 16}
_WARM_UP_S, _ROUND_S, _TIMEOUT_S = 0.3, 1.5, 20.0
_COLD_BYTES, _COLD_S = 8 << 20, 0.0006
_TEMPLATES = 8
PLACES = ("router", "process")


@dataclass(frozen=True)
class Case:
    """aggregator: `router` for the one inside it, `process`. calls: in a round."""

    groups: int
    tokens: int
    aggregator: str
    cold: bool

    @property
    def title(self) -> str:
        """For a row of the table."""
        return f"{self.aggregator}, {self.groups} groups, {self.tokens} tokens, {'cold' if self.cold else 'hot'}"


@dataclass(frozen=True)
class Cost:
    """Of one case over one wire, microseconds a call; cpu over all processes. rounds: p50 of each."""

    wire: str
    p50_us: float
    p95_us: float
    cpu_us: float
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class Template:
    """A layer call to be made again and again. index, weights [tokens, _TOPK]; call: with the parts made of them."""

    index: torch.Tensor
    weights: torch.Tensor
    call: LayerCall


class Rig:
    """The expert processes, perhaps an aggregator, and a router's wire, of one implementation.

    parts: process ids by name, `router` (this one), `expert 0` and on, `aggregator` where it is a process.
    """

    def __init__(self, name: str, groups: int, aggregator: str, started: Processes) -> None:
        actors = wire(name)
        tag = f"{name}-{groups}-{aggregator}"
        part_of_expert = tuple(expert % groups for expert in range(_EXPERTS))
        self._part_of = np.array(part_of_expert, dtype=np.int32)
        self.endpoints = tuple(f"unix:{started.folder}/{tag}-e{group}.sock" for group in range(groups))
        self.parts = {"router": os.getpid()}
        for group, endpoint in enumerate(self.endpoints):
            held = ",".join(str(expert) for expert in range(_EXPERTS) if expert % groups == group)
            words = ["expert", "--wire", name, "--listen", endpoint, "--experts", held, "--hidden", str(_HIDDEN)]
            self.parts[f"expert {group}"] = started.start(f"{tag}-e{group}", "benchmarks.null_part", words)
        for group, endpoint in enumerate(self.endpoints):
            started.wait_ready(f"{tag}-e{group}", endpoint)
        self.aggregator: str | None = None
        if aggregator == "process":
            self.aggregator = f"unix:{started.folder}/{tag}-a.sock"
            words = ["aggregator", "--wire", name, "--listen", self.aggregator]
            words += ["--collect", ",".join(self.endpoints)]
            self.parts["aggregator"] = started.start(f"{tag}-a", "benchmarks.null_part", words)
            started.wait_ready(f"{tag}-a", self.aggregator)
        inside = None if self.aggregator else combiner_for(actors, CombinerLimits())
        self.wire: RouterWire = actors.router("router-0", combiner=inside, settings=WireSettings())
        self.wire.set_endpoints(self.endpoints, [self.aggregator] if self.aggregator else [])
        self._places = Places(part_of_expert, self.endpoints)
        self._ids = count(1)

    def call(self, template: Template) -> None:
        """One layer call from its routing to its end, over open streams. RuntimeError where its answer is not whole."""
        wire, parted = self.wire, template.call
        if not isinstance(wire, RoutedWire):
            parts = plan_parts(template.index, template.weights, self._part_of, _EXPERTS)
            self._exchange(replace(parted, parts=parts))
            return
        deadline = time.monotonic() + _TIMEOUT_S
        call = RoutedCall(
            next(self._ids), parted.layer, parted.hidden, template.index, template.weights, _EXPERTS, self._places,
            parted.policy, deadline, None, self.aggregator,
        )  # fmt: skip
        _whole(wire.exchange_routed(call, deadline))

    def call_in_parts(self, template: Template) -> None:
        """As `call`, by the parts that are cut already; failed ones, as before the streams are open, are sent again."""
        self._exchange(template.call)

    def _exchange(self, parted: LayerCall) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        call = replace(parted, call_id=next(self._ids), deadline=deadline)
        wanted = [part.part for part in call.parts]
        while True:
            targets = [Target(part, self.endpoints[part]) for part in wanted]
            outcome = self.wire.exchange(call, targets, self.aggregator, deadline)
            wanted = [failure.part for failure in getattr(outcome, "failures", ())]
            if not wanted:
                _whole(outcome)
                return
            time.sleep(0.01)

    def templates(self, tokens: int) -> list[Template]:
        """Calls with random routing."""
        generator = torch.Generator().manual_seed(tokens)
        return [self._template(tokens, generator) for _ in range(_TEMPLATES)]

    def _template(self, tokens: int, generator: torch.Generator) -> Template:
        hidden = torch.randn(tokens, _HIDDEN, generator=generator).to(torch.bfloat16)
        index = torch.rand(tokens, _EXPERTS, generator=generator).topk(_TOPK, 1).indices
        weights = torch.full((tokens, _TOPK), 1 / _TOPK)
        parts = plan_parts(index, weights, self._part_of, _EXPERTS)
        return Template(index, weights, LayerCall(0, 0, hidden, parts, MissingPolicy.WAIT, 0.0))

    @property
    def pids(self) -> list[int]:
        """Every process of the rig, this one included."""
        return list(self.parts.values())

    def close(self) -> None:
        """Ends the wire; the processes are ended by whoever started them."""
        self.wire.close()


def _whole(outcome: Outcome | None) -> None:
    if not isinstance(outcome, Combined) or outcome.missing:
        raise RuntimeError(f"layer call ended with {outcome}")


class OtherWork:
    """What a router does between two layer calls: streams weights through the caches, for a set time."""

    def __init__(self) -> None:
        self._weights = torch.zeros(_COLD_BYTES // 4)

    def run(self) -> None:
        """At least once through, and 0.6 ms."""
        until = time.perf_counter() + _COLD_S
        self._weights.add_(1.0)
        while time.perf_counter() < until:
            self._weights[: 1 << 16].add_(1.0)


@contextlib.contextmanager
def rigs(names: Sequence[str], groups: int, aggregator: str, folder: Path) -> Iterator[dict[str, Rig]]:
    """A rig of each implementation, all up at once."""
    with contextlib.ExitStack() as stack:
        up = {}
        for name in names:
            up[name] = Rig(name, groups, aggregator, stack.enter_context(processes(folder)))
            stack.callback(up[name].close)
        yield up


def measure(up: dict[str, Rig], case: Case, rounds: int) -> list[Cost]:
    """The wires in turns, `rounds` times each."""
    templates = {name: rig.templates(case.tokens) for name, rig in up.items()}
    times: dict[str, list[list[float]]] = {name: [] for name in up}
    cpu: dict[str, list[float]] = {name: [] for name in up}
    for name, rig in up.items():
        _warm_up(rig, templates[name])
    for turn in range(rounds):
        order = list(up) if turn % 2 == 0 else list(reversed(up))
        for name in order:
            samples, spent = _round(up[name], templates[name], case)
            times[name].append(samples)
            cpu[name].append(spent)
    return [_cost(name, times[name], cpu[name]) for name in up]


def _warm_up(rig: Rig, templates: list[Template]) -> None:
    for template in templates:
        rig.call_in_parts(template)
    until = time.perf_counter() + _WARM_UP_S
    while time.perf_counter() < until:
        for template in templates:
            rig.call(template)


def _round(rig: Rig, templates: list[Template], case: Case) -> tuple[list[float], float]:
    """Seconds of each call, for 1.5 s at most, and CPU seconds a call; the other work of cold rounds is not counted."""
    other = OtherWork() if case.cold else None
    samples: list[float] = []
    between = 0.0
    until = time.perf_counter() + _ROUND_S
    before = cpu_seconds(rig.pids)
    while len(samples) < _CALLS.get(case.tokens, 50) and time.perf_counter() < until:
        if other:
            started = time.thread_time()
            other.run()
            between += time.thread_time() - started
        started = time.perf_counter()
        rig.call(templates[len(samples) % len(templates)])
        samples.append(time.perf_counter() - started)
    return samples, (cpu_seconds(rig.pids) - before - between) / len(samples)


def _cost(name: str, times: list[list[float]], cpu: list[float]) -> Cost:
    every = [sample * 1e6 for samples in times for sample in samples]
    rounds = tuple(median(samples) * 1e6 for samples in times)
    return Cost(name, median(rounds), percentile(every, 95), median(cpu) * 1e6, rounds)


def _row(case: Case, costs: list[Cost], names: Sequence[str]) -> list[str]:
    by_wire = {cost.wire: cost for cost in costs}
    cells = [case.title]
    for name in names:
        cost = by_wire.get(name)
        cells += [number(each) for each in ((cost.p50_us, cost.p95_us, cost.cpu_us) if cost else (None, None, None))]
    if len(costs) == len(names) == 2:
        cells.append(number(paired_ratio(by_wire[names[0]].rounds, by_wire[names[1]].rounds)))
    elif len(names) == 2:
        cells.append("absent")
    return cells


def run(chosen: argparse.Namespace) -> int:
    """Measures what was chosen and prints it."""
    machine = this_machine(("torch", "grpcio"))
    torch.set_num_threads(1)
    names, absent = _present(chosen.wire)
    if not names:
        print("\n".join(f"error: {reason}" for reason in absent.values()), file=sys.stderr)
        return 1
    results: list[tuple[Case, list[Cost]]] = []
    for aggregator in chosen.aggregator:
        for groups in chosen.groups:
            with (
                tempfile.TemporaryDirectory(prefix="moe-bench-") as folder,
                rigs(names, groups, aggregator, Path(folder)) as up,
            ):
                for case in _cases(chosen, groups, aggregator):
                    print(f"layer-call: {case.title}", file=sys.stderr)
                    results.append((case, measure(up, case, chosen.rounds)))
    if chosen.json:
        rows = [{**asdict(case), **asdict(cost)} for case, costs in results for cost in costs]
        print(json.dumps({"machine": machine.as_dict(), "absent": absent, "costs": rows}))
    else:
        publish("layer-call", _text(machine.lines(), chosen, results, absent), chosen.into)
    return 0


def _present(wanted: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    names, absent = [], {}
    for name in wanted:
        try:
            wire(name)
            names.append(name)
        except AbsentError as error:
            absent[name] = str(error)
    return names, absent


def _cases(chosen: argparse.Namespace, groups: int, aggregator: str) -> list[Case]:
    return [Case(groups, tokens, aggregator, cold) for tokens in chosen.tokens for cold in (False, True)]


def _text(
    lines: Sequence[str],
    chosen: argparse.Namespace,
    results: Sequence[tuple[Case, list[Cost]]],
    absent: dict[str, str],
) -> str:
    how = f"rounds    {chosen.rounds} in turns; µs a call: median of rounds, 95th percentile, CPU of all processes"
    header = ["aggregator in, groups, tokens"]
    for name in chosen.wire:
        header += [f"{name} p50", "p95", "CPU"]
    if len(chosen.wire) == 2:
        header.append(f"{chosen.wire[0]} / {chosen.wire[1]}")
    rows = table(header, [_row(case, costs, chosen.wire) for case, costs in results])
    return "\n\n".join([fenced([*lines, how]), rows, *(f"absent: {reason}" for reason in absent.values())])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="layer-call", description=__doc__.partition("\n")[0])
    made.add_argument("--wire", action="append", choices=WIRES, help="repeatable; default: both, in turns")
    made.add_argument("--groups", type=int, nargs="+", default=[1, 2, 8], metavar="N")
    made.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 256, 2048], metavar="N")
    made.add_argument("--aggregator", nargs="+", choices=PLACES, default=list(PLACES))
    made.add_argument("--rounds", type=int, default=4)
    made.add_argument("--quick", action="store_true", help="2 and 8 groups, 1 and 16 tokens, two rounds: one minute")
    made.add_argument("--json", action="store_true")
    made.add_argument("--into", type=Path, metavar="FILE", help="put the table into this page too")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when nothing that was named can run."""
    chosen = parser().parse_args(argv)
    chosen.wire = list(dict.fromkeys(chosen.wire or WIRES))
    if chosen.quick:
        chosen.groups, chosen.tokens, chosen.rounds = [2, 8], [1, 16], 2
    return run(chosen)


if __name__ == "__main__":
    sys.exit(main())
