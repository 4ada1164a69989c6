"""The experts' FFN on this machine: our back ends beside peers, and both beside the machine's own limits.

    python -m benchmarks.ffn [--shape moe|demo|deepseek] [--threads 2] [--tokens 1,2,4] [--json FILE]

Every figure is the median of interleaved calls with another routing each, so that weights come from memory, not from
a cache that the last call filled. A ratio compares figures of the same run only. OMP_WAIT_POLICY=PASSIVE is wanted in
the environment: threads of one contestant that spin would take the cores from the next.
"""

import argparse
import json
from pathlib import Path

import torch

from benchmarks.ffn.contestants import CONTESTANTS, build
from benchmarks.ffn.machine import describe, measure_limits
from benchmarks.ffn.shapes import SHAPES, Shape, routings
from benchmarks.ffn.timing import Times, measure


def main() -> None:
    """Prints the table, and writes it as JSON where asked to."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    shape = SHAPES[arguments.shape]
    machine, limits = describe(), measure_limits(arguments.threads)
    print(f"{machine}, threads {arguments.threads}")
    print(f"limits: read {limits.read_gbps:.1f} GB/s, sgemm {limits.gflops:.1f} GFLOP/s")
    print(f"{shape.name}: {shape}")
    contestants = build(shape, arguments.only.split(",") if arguments.only else list(CONTESTANTS))
    rows: list[dict[str, object]] = []
    hopeless: set[str] = set()
    for tokens in (int(word) for word in arguments.tokens.split(",")):
        runs = {name: run for name, run in contestants.items() if name not in hopeless}
        times = measure(runs, routings(shape, tokens), arguments.seconds)
        hopeless |= {name for name, each in times.items() if each.median_s > arguments.seconds}
        rows += _print(shape, tokens, times, limits.read_gbps, limits.gflops)
    if arguments.json:
        facts = {"machine": machine, "threads": arguments.threads, "limits": limits.__dict__, "shape": shape.__dict__}
        Path(arguments.json).write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def _print(
    shape: Shape, tokens: int, times: dict[str, Times], read_gbps: float, gflops: float
) -> list[dict[str, object]]:
    rows = []
    ours = times["native bf16"].median_s if "native bf16" in times else None
    for name, each in times.items():
        size = CONTESTANTS[name].bytes_per_weight
        gbps = each.experts * shape.expert_weights * size / each.median_s / 1e9
        rate = 2 * tokens * shape.topk * shape.expert_weights / each.median_s / 1e9
        row = {"tokens": tokens, "back end": name, "us": each.median_s * 1e6, "gbps": gbps, "gflops": rate}
        row |= {"of read": gbps / read_gbps, "of sgemm": rate / gflops, "to native bf16": ours and each.median_s / ours}
        rows.append(row)
        ratio = "" if ours is None else f"{each.median_s / ours:6.2f} x"
        print(
            f"{tokens:5} {name:22} {each.median_s * 1e6:11.0f} us {gbps:7.1f} GB/s {gbps / read_gbps:5.0%}"
            f" {rate:7.1f} GFLOP/s {rate / gflops:5.0%} {ratio}",
            flush=True,
        )
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.ffn", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="moe")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", default="1,2,4,8,16,64,256,1024")
    parser.add_argument("--only", help="contestants by name, with commas between")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each contestant and number of tokens")
    parser.add_argument("--json", help="file to write the figures to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
