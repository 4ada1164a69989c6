"""The experts' FFN on this machine: our back ends beside peers, and both beside the machine's own limits.

    python -m benchmarks.ffn [--shape moe|demo|deepseek] [--threads 2] [--tokens 1,2,4] [--json FILE]
                            [--clock wall|cpu] [--into PAGE]
    python -m benchmarks.ffn --quick

Every figure is the median of interleaved calls with another routing each, so that weights come from memory, not from
a cache that the last call filled. A ratio compares figures of the same run only, and a share of the read limit is of
what memory gave in the same turns. Before it is measured, a contestant's
rows are compared to the layer computed in float32; one that computes something else is absent, with how far off it was.
OMP_WAIT_POLICY=PASSIVE is wanted in the environment: threads of one contestant that spin would take the cores from the
next. Where others use the machine, `--clock cpu --threads 1` still says something: it counts a call's processor time.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.document import fenced, replaced, require_places
from benchmarks.ffn.check import wrong
from benchmarks.ffn.contestants import CONTESTANTS, build
from benchmarks.ffn.machine import Limits, Reader, describe, measure_limits
from benchmarks.ffn.peers import PEERS, PeerProcess
from benchmarks.ffn.shapes import SHAPES, Shape, routings
from benchmarks.ffn.timing import CLOCKS, Timed, Times, measure, timed
from benchmarks.wires import AbsentError

_TOKENS, _QUICK_TOKENS = "1,2,4,8,16,64,256,1024", "1,4,16"
_QUICK_S = 0.3
_PEER_BYTES = 2
_READ = "memory, in these turns"


def main() -> None:
    """Prints the table, and writes it as JSON where asked to."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    shape = SHAPES[arguments.shape]
    counts = [int(word) for word in arguments.tokens.split(",")]
    require_places([f"ffn-{arguments.shape}"], arguments.into)
    machine, limits = describe(), measure_limits(arguments.threads, CLOCKS[arguments.clock])
    lines: list[str] = []
    how = f"threads {arguments.threads}, {arguments.clock} time"
    _say(lines, f"{machine}, {how}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    pages = f"read {limits.read_gbps:.1f} GB/s, from pages of 4 KiB {limits.small_pages_gbps:.1f}"
    _say(lines, f"limits: {pages}; torch's product of 2048 cubed {limits.gflops:.1f} GFLOP/s")
    _say(lines, f"{shape.name}: {shape}; median of interleaved calls and, after it, the fastest quarter's slowest")
    with ExitStack() as stack:
        contestants, absent = _contestants(arguments, shape, stack, lines)
        expected = len(contestants) * len(counts) * arguments.seconds
        print(f"ffn: {len(contestants)} contestants, {len(counts)} numbers of tokens, {expected:.0f} s or more")
        reader = Reader(arguments.threads, CLOCKS[arguments.clock])
        rows = measured_rows(lines, shape, counts, contestants, limits, reader, arguments.seconds)
    for why in absent:
        _say(lines, f"absent: {why}")
    if arguments.into:
        page = arguments.into.read_text(encoding="utf-8")
        page = replaced(page, f"ffn-{arguments.shape}", fenced(lines))
        arguments.into.write_text(page, encoding="utf-8")
    if arguments.json:
        facts = {"machine": machine, "threads": arguments.threads, "limits": limits.__dict__, "shape": shape.__dict__}
        Path(arguments.json).write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def measured_rows(
    lines: list[str],
    shape: Shape,
    counts: Sequence[int],
    contestants: Mapping[str, Timed],
    limits: Limits,
    reader: Reader,
    seconds: float,
) -> list[dict[str, object]]:
    """The table of each number of tokens; who takes more than its seconds for a call is left out of those after it."""
    rows: list[dict[str, object]] = []
    left = dict(contestants)
    for tokens in counts:
        if not left:
            _say(lines, f"{tokens:5} nobody is left")
            break
        times = measure(left, routings(shape, tokens), seconds, {_READ: reader})
        read = times.pop(_READ)
        gbps = reader.stretch / read.median_s / 1e9
        taken = f"{read.median_s * 1e6:10.0f} us ({read.quarter_s * 1e6:8.0f})"
        _say(lines, f"{tokens:5} {_READ:24} {taken} {gbps:6.1f} GB/s, {reader.stretch >> 20} MiB")
        rows += _print(lines, shape, tokens, times, replace(limits, read_gbps=gbps))
        for name in [name for name, each in times.items() if each.median_s > seconds]:
            del left[name]
            _say(lines, f"{tokens:5} {name:24} is left out from here on: a call takes more than {seconds:g} s")
    return rows


def _contestants(
    arguments: argparse.Namespace, shape: Shape, stack: ExitStack, lines: list[str]
) -> tuple[dict[str, Timed], list[str]]:
    """Those that are there and compute the layer, and why the others don't take part."""
    names: list[str] = arguments.only
    routing = routings(shape, 3)[0]
    found: dict[str, Timed] = {}
    absent: list[str] = []
    for name, run in build(shape, [name for name in names if name in CONTESTANTS]).items():
        reason = wrong(run(routing), routing, shape, CONTESTANTS[name].bytes_per_weight)
        if reason:
            absent.append(f"{name}: {reason}")
        else:
            found[name] = timed(run, CLOCKS[arguments.clock])
    for name in (name for name in names if name in PEERS):
        try:
            if arguments.clock == "cpu":
                raise AbsentError(f"{name}: a process of its own, which tells no processor time; take --clock wall")
            peer = stack.enter_context(PeerProcess(name, arguments.shape, arguments.threads))
            reason = wrong(peer.rows(routing), routing, shape, _PEER_BYTES)
            if reason:
                raise AbsentError(f"{name}: {reason}")
            found[name] = peer
            _say(lines, f"{name}: {peer.versions}, a process of its own")
        except AbsentError as error:
            absent.append(str(error))
    return found, absent


def _say(lines: list[str], line: str) -> None:
    print(line, flush=True)
    lines.append(line)


def _print(
    lines: list[str], shape: Shape, tokens: int, times: dict[str, Times], limits: Limits
) -> list[dict[str, object]]:
    rows = []
    ours = times["native bf16"].median_s if "native bf16" in times else None
    experts = next(iter(times.values())).experts
    operations = 2 * tokens * shape.topk * shape.expert_weights
    for size, kind in ((2, "16 bits"), (1, "8 bits")):
        least, bound = limits.roofline_s(experts * shape.expert_weights * size, operations)
        _say(lines, f"{tokens:5} {f'roofline, {kind} a weight':24} {least * 1e6:10.0f} us, bound by {bound}")
    for name, each in times.items():
        contestant = CONTESTANTS.get(name)
        size = contestant.expert_bytes(shape) if contestant else shape.expert_weights * _PEER_BYTES
        gbps = each.experts * size / each.median_s / 1e9
        rate = operations / each.median_s / 1e9
        of_read, of_product = gbps / limits.read_gbps, rate / limits.gflops
        row = {"tokens": tokens, "back end": name, "us": each.median_s * 1e6, "gbps": gbps, "gflops": rate}
        row |= {
            "read limit": limits.read_gbps,
            "of read": of_read,
            "of product": of_product,
            "to native bf16": ours and each.median_s / ours,
        }
        rows.append(row)
        ratio = "" if ours is None else f"{each.median_s / ours:6.2f} x"
        _say(
            lines,
            f"{tokens:5} {name:24} {each.median_s * 1e6:10.0f} us ({each.quarter_s * 1e6:8.0f})"
            f" {gbps:6.1f} GB/s {of_read:5.0%} {rate:6.1f} GFLOP/s {of_product:5.0%} {ratio}",
        )
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.ffn", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="moe")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", help=f"with commas between; default: {_TOKENS}")
    every = [*CONTESTANTS, *PEERS]
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="NAME", help=f"of {_quoted(every)}")
    parser.add_argument("--seconds", type=float, help="for each contestant and number of tokens; default: 1.5")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_TOKENS} tokens, {_QUICK_S} s each")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: processor time of all threads")
    parser.add_argument("--into", type=Path, help="page to put the table into")
    parser.add_argument("--json", help="file to write the figures to")
    chosen = parser.parse_args()
    chosen.tokens = chosen.tokens or (_QUICK_TOKENS if chosen.quick else _TOKENS)
    chosen.seconds = chosen.seconds or (_QUICK_S if chosen.quick else 1.5)
    return chosen


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


if __name__ == "__main__":
    main()
