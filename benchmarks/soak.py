"""Whether memory stays flat over very many layer calls: router, aggregator and experts on unix sockets.

    python -m benchmarks.soak                                  # a million calls; about five minutes
    python -m benchmarks.soak --calls 20000 --aggregator router --wire grpcio

Most calls are of one token, each hundredth of 16 and each thousandth of 64, for which an expert leaves the wire's
runtime. A native router cuts the routing itself; every sixteenth call is handed to it in parts, as one that is carried
on. By a tenth of the calls every size has been seen and every buffer is as large as it gets: what a process grows by
after it would go on growing, and beyond a bound the program says so and ends with 1.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.document import fenced, publish
from benchmarks.layer_call import PLACES, Rig
from benchmarks.machine import this_machine
from benchmarks.memory import Memory, memory_of
from benchmarks.processes import processes
from benchmarks.tables import table
from benchmarks.wires import WIRES, AbsentError, wire

MARKS = (0.1, 0.5, 1.0)
"""Shares of the calls after which memory is read; growth is counted from the first to the last."""

_IN_PARTS = 16
_LEAST_CALLS = 10


@dataclass(frozen=True)
class Reading:
    """After so many calls, so many seconds from the first. memory: by process."""

    calls: int
    seconds: float
    memory: dict[str, Memory]


def tokens_of(call: int) -> int:
    """How many tokens the call of a number has, counted from 0."""
    if call % 1000 == 0:
        return 64
    return 16 if call % 100 == 0 else 1


def growth_kib(readings: Sequence[Reading]) -> dict[str, int]:
    """What each process's resident memory grew by from the first reading to the last."""
    first, last = readings[0].memory, readings[-1].memory
    return {name: last[name].rss_kib - first[name].rss_kib for name in last}


def too_much(readings: Sequence[Reading], bound_kib: int) -> dict[str, int]:
    """The processes that grew by more than the bound, and by how much."""
    return {name: grown for name, grown in growth_kib(readings).items() if grown > bound_kib}


class Soak:
    """Calls of every size over one rig, one after the other."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._templates = {tokens: rig.templates(tokens) for tokens in (1, 16, 64)}
        for template in self._templates[1]:
            rig.call_in_parts(template)  # opens every stream

    def run(self, calls: int) -> list[Reading]:
        """That many, with a reading at each of MARKS. Raises RuntimeError for a call without its whole answer."""
        readings, begun = [], time.monotonic()
        marks = {round(calls * mark) for mark in MARKS}
        for call in range(calls):
            self._call(call)
            if call + 1 in marks:
                memory = {name: memory_of(pid) for name, pid in self._rig.parts.items()}
                readings.append(Reading(call + 1, time.monotonic() - begun, memory))
        return readings

    def _call(self, number: int) -> None:
        templates = self._templates[tokens_of(number)]
        template = templates[number % len(templates)]
        if number % _IN_PARTS == 0:
            self._rig.call_in_parts(template)
        else:
            self._rig.call(template)


def run(chosen: argparse.Namespace) -> int:
    """Makes the calls and prints the table; 1 when a process grew too much."""
    machine = this_machine(("torch", "grpcio"))
    torch.set_num_threads(1)
    try:
        wire(chosen.wire)
    except AbsentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="moe-bench-") as folder, processes(Path(folder)) as started:
        rig = Rig(chosen.wire, chosen.groups, chosen.aggregator, started)
        try:
            readings = Soak(rig).run(chosen.calls)
        finally:
            rig.close()
    grown = too_much(readings, chosen.bound_kib)
    if chosen.json:
        told = [asdict(reading) for reading in readings]
        print(json.dumps({"machine": machine.as_dict(), "readings": told, "too_much": grown}))
    else:
        publish("soak", _text(machine.lines(), chosen, readings), chosen.into)
    for name, kib in grown.items():
        calls = readings[-1].calls - readings[0].calls
        print(f"error: {name} grew by {kib} KiB in {calls} calls, the bound is {chosen.bound_kib}", file=sys.stderr)
    return 1 if grown else 0


def _text(lines: Sequence[str], chosen: argparse.Namespace, readings: Sequence[Reading]) -> str:
    last = readings[-1]
    how = [
        f"calls     {last.calls:,} in {last.seconds:.0f} s over {chosen.wire}, {chosen.groups} groups, aggregator in "
        f"{chosen.aggregator}; {last.seconds / last.calls * 1e6:.0f} µs each, reading memory included",
        f"bound     {chosen.bound_kib:,} KiB of growth of each process's RSS after the first tenth",
    ]
    shares = [f"{reading.calls / last.calls:.0%}" for reading in readings]
    header = ["KiB", *(f"RSS {share}" for share in shares), "growth", *(f"PSS {share}" for share in shares)]
    grown = growth_kib(readings)
    rows = []
    for name in last.memory:
        rss, pss = zip(*((r.memory[name].rss_kib, r.memory[name].pss_kib) for r in readings), strict=True)
        rows.append([name, *(f"{kib:,}" for kib in rss), f"{grown[name]:+,}", *(f"{kib:,}" for kib in pss)])
    return "\n\n".join([fenced([*lines, *how]), table(header, rows)])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="soak", description=__doc__.partition("\n")[0])
    made.add_argument("--calls", type=_calls, default=1_000_000, metavar="N")
    made.add_argument("--wire", choices=WIRES, default="native")
    made.add_argument("--groups", type=int, default=2, metavar="N")
    made.add_argument("--aggregator", choices=PLACES, default="process")
    made.add_argument("--bound-kib", type=int, default=1024, metavar="KIB", help="that a process may grow by")
    made.add_argument("--json", action="store_true")
    made.add_argument("--into", type=Path, metavar="FILE", help="put the table into this page too")
    return made


def _calls(text: str) -> int:
    if not text.isdigit() or int(text) < _LEAST_CALLS:
        raise argparse.ArgumentTypeError(f"got {text}, want {_LEAST_CALLS} or more: memory is read at each tenth")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when memory grew too much or the wire isn't built."""
    return run(parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
