"""Ours and its peers, end to end, in turns: output tokens a second, time to first token, time per token.

    python -m benchmarks.end_to_end                       # models S, M; every variant and peer; an hour or so
    python -m benchmarks.end_to_end --quick               # S, one round, no peer that starts slowly; below 5 minutes

Each round goes through all engines, one up at a time, and every second round backwards: ABBA. Figures are medians of
the rounds, with their spread; an engine that can't run stands in the table as absent, with the reason below it.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.document import fenced, publish
from benchmarks.end_to_end import workloads
from benchmarks.end_to_end.drive import Running
from benchmarks.end_to_end.engines import PEERS, Engine, Model, deployed, one_process, peer
from benchmarks.end_to_end.models import NAMES, ensure_model
from benchmarks.end_to_end.report import COLUMNS, Result, results_text
from benchmarks.machine import this_machine
from benchmarks.wires import WIRES, AbsentError

PLACEMENTS = ("embedded", "sidecar", "process")
_QUICK_PEERS = ("llama.cpp bf16", "llama.cpp q8_0")


@dataclass(frozen=True)
class Effort:
    """How much is measured in a turn. limit_s: of a workload. load: whether W3 runs; requests: in each part of it."""

    singles: int = 4
    single_new: int = 64
    load: bool = True
    requests: int = 40
    limit_s: float = 240.0


@dataclass
class Turns:
    """The engines of one model, and what was measured of each so far."""

    model: Model
    engines: list[Engine]
    results: dict[str, Result] = field(default_factory=dict)

    def take(self, engine: Engine, effort: Effort, seed: int) -> None:
        """One turn of one engine; its absence is noted when it can't run or not in time."""
        result = self.results.setdefault(engine.name, Result(engine.name))
        if result.absent:
            return
        try:
            running = Running(engine)
            try:
                result.facts = running.facts
                for name, value in _measure(running, self.model.vocabulary, effort, seed).items():
                    result.rounds.setdefault(name, []).append(value)
            finally:
                running.close()
        except AbsentError as error:
            result.absent = str(error)


def _measure(running: Running, vocabulary: int, effort: Effort, seed: int) -> dict[str, float]:
    """All workloads on an engine that is up."""
    running.run(workloads.batch(vocabulary, count=2, new=8, seed=999), effort.limit_s)
    together = running.run(workloads.batch(vocabulary, seed=seed), effort.limit_s)
    alone = [
        running.run(workloads.batch(vocabulary, count=1, new=effort.single_new, seed=seed + n), effort.limit_s)[0]
        for n in range(effort.singles)
    ]
    figures = {
        "w1_tokens_s": workloads.throughput(together),
        **{f"w2_{k}": v for k, v in workloads.single(alone).items()},
    }
    if effort.load:
        figures |= _under_load(running, vocabulary, effort, seed)
    return figures


def _under_load(running: Running, vocabulary: int, effort: Effort, seed: int) -> dict[str, float]:
    """W3 at half and at nine tenths of this engine's own capacity for the same mix."""
    everything = running.run(workloads.mixed(vocabulary, effort.requests, seed), effort.limit_s)
    capacity = workloads.requests_per_second(everything)
    figures = {"w3_capacity_s": capacity}
    for percent in (50, 90):
        sent = workloads.poisson(vocabulary, capacity * percent / 100, effort.requests, seed + percent)
        for name, value in workloads.under_load(running.run(sent, effort.limit_s)).items():
            figures[f"w3_{percent}_{name}"] = value
    return figures


def _turns(model: Model, chosen: argparse.Namespace) -> Turns:
    engines = [one_process(model, chosen.threads)]
    for placement in chosen.aggregator:
        for groups in chosen.groups:
            engines += [deployed(model, chosen.threads, groups, placement, name) for name in chosen.wire]
    turns = Turns(model, engines)
    for name in chosen.peer:
        try:
            engines.append(peer(name, model, chosen.threads))
        except AbsentError as error:
            turns.results[name] = Result(name, absent=str(error))
    return turns


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="end-to-end", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--model", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}; default: S M"
    )
    parser.add_argument("--groups", type=int, nargs="+", default=[8], metavar="N", help="expert processes")
    parser.add_argument("--aggregator", nargs="+", choices=PLACEMENTS, default=["embedded", "process"])
    parser.add_argument(
        "--wire", nargs="+", choices=("auto", *WIRES), default=["auto"], help="auto is what moe up takes"
    )
    parser.add_argument("--peer", nargs="*", choices=PEERS, metavar="NAME", help=f"default: all of {', '.join(PEERS)}")
    parser.add_argument("--threads", type=int, default=2, help="of the router, of one process, of a peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-load", action="store_true", help="without W3")
    parser.add_argument("--quick", action="store_true", help="S, one round, no W3, no peer that starts slowly")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the tables into this page too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; 0 also when some engine is absent."""
    chosen = _parser().parse_args(argv)
    if chosen.quick:
        chosen.rounds, chosen.no_load = 1, True
    names = chosen.model or (["S"] if chosen.quick else ["S", "M"])
    chosen.peer = chosen.peer if chosen.peer is not None else list(_QUICK_PEERS if chosen.quick else PEERS)
    effort = Effort(singles=2 if chosen.quick else 4, load=not chosen.no_load)
    machine = this_machine()
    every: list[tuple[str, list[Result]]] = []
    for name in names:
        model = ensure_model(name, gguf=any(each.startswith("llama.cpp") for each in chosen.peer))
        every.append((name, _in_turns(_turns(model, chosen), chosen.rounds, effort)))
    if chosen.json:
        models = {name: [result.as_dict() for result in results] for name, results in every}
        print(
            json.dumps({"machine": machine.as_dict(), "threads": chosen.threads, "columns": COLUMNS, "models": models})
        )
    else:
        how = [
            f"threads   {chosen.threads} of the router, of one process and of a peer; experts as moe up divides them",
            f"rounds    {chosen.rounds}, every second one backwards; medians; spread: of the least steady figure",
        ]
        texts = [results_text(name, results) for name, results in every]
        publish("end-to-end", "\n\n".join([fenced([*machine.lines(), *how]), *texts]), chosen.into)
    return 0


def _in_turns(turns: Turns, rounds: int, effort: Effort) -> list[Result]:
    for number in range(rounds):
        for engine in turns.engines if number % 2 == 0 else reversed(turns.engines):
            started = time.monotonic()
            turns.take(engine, effort, seed=number * 100)
            absent = ": absent" if turns.results[engine.name].absent else ""
            took = time.monotonic() - started
            print(
                f"end-to-end: {turns.model.name} round {number + 1}, {engine.name}{absent}, {took:.0f} s",
                file=sys.stderr,
            )
    order = [engine.name for engine in turns.engines]
    return [turns.results[name] for name in (*order, *(name for name in turns.results if name not in order))]


if __name__ == "__main__":
    sys.exit(main())
