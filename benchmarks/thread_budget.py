"""Which division of the cores among router and experts is fastest, and whether `moe up` takes it.

    python -m benchmarks.thread_budget --model M --groups 1 2 8                    # two minutes for each number
    python -m benchmarks.thread_budget --groups 8 --only 2/1 --keep measured.jsonl    # a piece of it, kept
    python -m benchmarks.thread_budget --report --keep measured.jsonl                 # the table of what was kept

Each turn brings a deployment up with so many threads, sends it W1 with half the new tokens, then W2 a few times, and
ends it. Turns of one number of groups neighbour each other, every second round backwards.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from moe.operator.planner import thread_budget
from moe.runtime.process import available_cores

from benchmarks.document import fenced, publish, require_places
from benchmarks.end_to_end import workloads
from benchmarks.end_to_end.drive import Running
from benchmarks.end_to_end.engines import Model, deployed
from benchmarks.end_to_end.models import NAMES, ensure_model
from benchmarks.figures import median
from benchmarks.machine import this_machine
from benchmarks.tables import number, table
from benchmarks.wires import AbsentError

PLACE = "thread-budget"
_NEW, _SINGLES, _LIMIT_S = 32, 3, 300.0


@dataclass(frozen=True)
class Division:
    """Threads of the router and of each of so many expert processes."""

    groups: int
    router: int
    expert: int

    @property
    def is_taken(self) -> bool:
        """Whether `moe up` divides this machine's cores so when it is not told otherwise."""
        budget = thread_budget(available_cores(), self.groups)
        return (budget.router, budget.expert) == (self.router, self.expert)


@dataclass(frozen=True)
class Taken:
    """What one turn measured."""

    division: Division
    w1_tokens_s: float
    w2_ms: float


def divisions(groups: Sequence[int], threads: Sequence[int], only: Sequence[str]) -> list[Division]:
    """All of them. only: those, as router/expert; none means all."""
    every = [Division(count, router, expert) for count in groups for router in threads for expert in threads]
    return [each for each in every if not only or f"{each.router}/{each.expert}" in only]


def measure(model: Model, division: Division, placement: str, seed: int) -> Taken:
    """One deployment, from its start to its end. Raises AbsentError when it can't run."""
    engine = deployed(model, division.router, division.groups, placement, "auto")
    running = Running(replace(engine, command=(*engine.command, "--expert-threads", str(division.expert))))
    try:
        running.run(workloads.batch(model.vocabulary, count=2, new=8, seed=999), _LIMIT_S)
        together = running.run(workloads.batch(model.vocabulary, new=_NEW, seed=seed), _LIMIT_S)
        alone = [running.run(workloads.batch(model.vocabulary, count=1, new=_NEW, seed=seed + n), _LIMIT_S)[0]
                 for n in range(_SINGLES)]  # fmt: skip
    finally:
        running.close()
    return Taken(division, workloads.throughput(together), workloads.single(alone)["per_token_ms"])


def rows(taken: Iterable[Taken]) -> list[list[str]]:
    """Of the table: medians of each division's turns, beside the best of the same number of groups."""
    turns: dict[Division, list[Taken]] = defaultdict(list)
    for each in taken:
        turns[each.division].append(each)
    middle = {
        division: (median([each.w1_tokens_s for each in one]), median([each.w2_ms for each in one]))
        for division, one in turns.items()
    }
    lines = []
    for division in sorted(middle, key=lambda each: (each.groups, each.router, each.expert)):
        peers = [values for other, values in middle.items() if other.groups == division.groups]
        w1, w2 = middle[division]
        best_w1, best_w2 = max(peer[0] for peer in peers), min(peer[1] for peer in peers)
        lines.append(
            [
                f"{division.groups} groups, router {division.router}, expert {division.expert}",
                "yes" if division.is_taken else "",
                number(w1),
                f"{w1 / best_w1:.0%}",
                number(w2),
                f"{w2 / best_w2:.0%}",
                str(len(turns[division])),
            ]
        )
    return lines


def _read(keep: Path | None) -> list[Taken]:
    if keep is None or not keep.exists():
        return []
    fields = [json.loads(line) for line in keep.read_text(encoding="utf-8").splitlines()]
    return [Taken(Division(**each.pop("division")), **each) for each in fields]


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="thread-budget", description=__doc__.partition("\n")[0])
    made.add_argument("--model", choices=NAMES, default="M")
    made.add_argument("--groups", type=int, nargs="+", default=[1, 2, 8], metavar="N", help="expert processes")
    made.add_argument("--threads", type=int, nargs="+", metavar="N", help="to try; default: 1 and the cores")
    made.add_argument("--only", nargs="+", default=[], metavar="ROUTER/EXPERT", help="of the divisions, these")
    made.add_argument("--aggregator", choices=("embedded", "sidecar", "process"), default="process")
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument(
        "--keep", type=Path, metavar="FILE", help="adds what is measured to it; the table is of all in it"
    )
    made.add_argument("--report", action="store_true", help="measures nothing: the table of --keep")
    made.add_argument("--into", type=Path, metavar="FILE", help="put the table into this page too")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    chosen = _parser().parse_args(argv)
    require_places([PLACE], chosen.into)
    machine = this_machine()
    threads = chosen.threads or sorted({1, available_cores()})
    taken = _read(chosen.keep)
    if not chosen.report:
        model = ensure_model(chosen.model, gguf=False, weights=("bf16",))
        every = divisions(chosen.groups, threads, chosen.only)
        for turn in range(chosen.rounds):
            for division in every if turn % 2 == 0 else reversed(every):
                try:
                    each = measure(model, division, chosen.aggregator, seed=turn * 100)
                except AbsentError as error:
                    print(f"thread-budget: {division} is left out: {error}", file=sys.stderr, flush=True)
                    continue
                print(f"thread-budget: {each}", file=sys.stderr, flush=True)
                taken.append(each)
                if chosen.keep:
                    with chosen.keep.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(each)) + "\n")
    if not taken:
        print("thread-budget: nothing was measured, so there is no table (--keep, --only)", file=sys.stderr)
        return 1
    how = [
        f"model     {chosen.model}, aggregator {chosen.aggregator}; W1 of {_NEW} new tokens, W2 a median of {_SINGLES}",
        "taken     by moe up on this machine; best: of the same number of groups, 100%",
    ]
    header = ["threads of each process", "taken", "W1 tokens/s", "of best", "W2 ms/token", "of best", "turns"]
    publish(PLACE, "\n\n".join([fenced([*machine.lines(), *how]), table(header, rows(taken))]), chosen.into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
