"""Where each microsecond of a router's step goes: `python -m benchmarks.router_step [PACKAGE]`.

The engine runs as it does in a router, with a wire that answers each layer call at once: what is left is the router's
own work. A step is timed as it is; then again with stopwatches around its stages, whose own cost is in the difference.
Without a package the backbone is a Mixtral-like one of medium size with random weights. With --groups it runs over real
expert processes of the package, and in one process in turns with it: where the tax of distribution goes.
"""

import argparse
import json
import platform
import tempfile
from pathlib import Path

import torch
from moe.models.backbone import TransformersBackbone, load_backbone
from moe.models.package import Package

from benchmarks.machine import this_machine
from benchmarks.processes import processes
from benchmarks.router_step.deployed import compare, deployed, lines
from benchmarks.router_step.made import write_medium
from benchmarks.router_step.measure import Measured, measure
from benchmarks.wires import WIRES


def main() -> None:
    """Prints a table for each number of rows."""
    options = _parser().parse_args()
    if options.groups and not options.package:
        raise SystemExit("error: --groups needs a PACKAGE, whose experts are computed")
    torch.set_num_threads(options.threads)
    options.steps = 20 if options.quick else options.steps
    with tempfile.TemporaryDirectory() as folder:
        package = options.package or write_medium(Path(folder) / "medium")
        backbone = load_backbone(
            package,
            deterministic=options.deterministic,
            linear_kernel=options.linear_kernel,
            attention_kernel=options.attention_kernel,
        )
    if options.groups:
        _compare(options, backbone)
        return
    results = [measure(backbone, rows, options.steps, options.context, options.temperature) for rows in options.rows]
    if options.json:
        print(json.dumps([result.as_json() for result in results]))
        return
    name = options.package.name if options.package else "medium (hidden 1024, 16 layers, 16 experts, top 2, bfloat16)"
    print(f"{name}; {platform.processor() or platform.machine()}, torch {torch.__version__}, threads {options.threads}")
    print(f"linear layers: {backbone.linears.words()}; attention and norms: {backbone.attention_kernel}")
    for result in results:
        _print(result)


def _compare(options: argparse.Namespace, backbone: TransformersBackbone) -> None:
    package = Package.open(options.package)
    measured = {}
    with (
        tempfile.TemporaryDirectory(prefix="moe-bench-") as folder,
        processes(Path(folder)) as started,
        deployed(package, options.groups, options.wire, started) as sides,
    ):
        for rows in options.rows:
            measured[rows] = compare(
                backbone, sides, rows=rows, steps=options.steps, context=options.context, rounds=options.rounds
            )
    if options.json:
        print(
            json.dumps({rows: {name: side.as_json() for name, side in each.items()} for rows, each in measured.items()})
        )
        return
    machine = this_machine(("torch",))
    print("\n".join(machine.lines()))
    print(f"package   {options.package.name}, {options.groups} groups, wire {options.wire}, threads {options.threads}")
    for rows, each in measured.items():
        print("\n".join([f"\n{rows} row{'s' if rows > 1 else ''}", *lines(each)]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.router_step", description=__doc__)
    parser.add_argument("package", type=Path, nargs="?", help="a model package; default: a made one")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16], help="requests that decode at once")
    parser.add_argument("--steps", type=int, default=100, help="steps timed; the median counts")
    parser.add_argument("--context", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--linear-kernel", choices=["auto", "torch", "native"], default="auto")
    parser.add_argument("--attention-kernel", choices=["auto", "torch", "native"], default="auto")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--quick", action="store_true", help="20 steps")
    parser.add_argument("--groups", type=int, default=0, help="expert processes; 0: none, a wire that answers at once")
    parser.add_argument("--wire", choices=WIRES, default="native", help="with --groups")
    parser.add_argument("--rounds", type=int, default=3, help="with --groups: turns of either side")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    return parser


def _print(result: Measured) -> None:
    print(f"\n{result.rows} row{'s' if result.rows > 1 else ''}: {result.step_s * 1e6:.0f} µs a step")
    print(f"  {'stage':<34}{'µs':>9}{'calls':>8}{'share':>8}")
    total = sum(stage.seconds for stage in result.stages)
    for stage in sorted(result.stages, key=lambda each: -each.seconds):
        print(f"  {stage.name:<34}{stage.seconds * 1e6:>9.0f}{stage.calls:>8.0f}{stage.seconds / total:>8.1%}")
    print(f"  {'sum, stopwatches included':<34}{total * 1e6:>9.0f}")


if __name__ == "__main__":
    main()
