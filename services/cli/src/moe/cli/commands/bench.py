"""`moe bench`: runs the benchmarks of a checkout. They are programs of the repository, not of the installed package."""

import os
import subprocess
import sys
from pathlib import Path

import click
from moe.cli.errors import UsageError

PROGRAMS = {
    "layer-call": ("benchmarks.layer_call", "What a hop costs: layer calls to processes that compute nothing."),
    "soak": ("benchmarks.soak", "Whether memory stays flat over a million layer calls."),
    "end-to-end": ("benchmarks.end_to_end", "Tokens a second, time to first token, time per token, beside peers."),
    "tax": ("benchmarks.tax", "What a deployment loses against one process, both up at once and asked in turns."),
    "thread-budget": ("benchmarks.thread_budget", "Which division of cores among router and experts is fastest."),
    "ffn": ("benchmarks.ffn", "The experts' kernels beside peers and the machine's limits."),
    "router-step": ("benchmarks.router_step", "Where each microsecond of a router's step goes."),
    "cluster": (
        "benchmarks.cluster",
        "On a Kubernetes of this machine: 128 experts' objects, first token, a new replica.",
    ),
}
_UP_TO_CHECKOUT = 6
"""services/cli/src/moe/cli/commands/bench.py, upwards."""

_PASS_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.group(
    epilog="\b\nExamples:\n"
    "  moe bench layer-call --quick\n"
    "  moe bench end-to-end --model S --peer 'llama.cpp bf16' --json\n"
    "  moe bench end-to-end --help\n\n"
    "Peers need environments of their own: make bench-peers. Numbers mean something only on a quiet\n"
    "machine; each table says what the load was."
)
def bench() -> None:
    """Measure this machine with the benchmarks of a checkout."""


def checkout(file: Path = Path(__file__)) -> Path:
    """The repository that this runs from. Raises UsageError when it is installed without one."""
    parents = file.resolve().parents
    if len(parents) > _UP_TO_CHECKOUT and (parents[_UP_TO_CHECKOUT] / "benchmarks" / "layer_call.py").exists():
        return parents[_UP_TO_CHECKOUT]
    raise UsageError(
        "moe bench runs the programs of a checkout, and this moe is installed without one; clone the repository, then "
        "`make setup` and .venv/bin/moe bench in it"
    )


def run(module: str, words: tuple[str, ...], root: Path) -> int:
    """Runs a program of the checkout to its end; its exit code, 130 when interrupted."""
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-m", module, *words], env={**os.environ, "PYTHONPATH": path}, check=False)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _command(name: str, module: str, about: str) -> click.Command:
    @click.command(name, context_settings=_PASS_ON, help=f"{about} All words go to it; --help shows its own.")
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def command(words: tuple[str, ...]) -> int:
        return run(module, words, checkout())

    return command


for _name, (_module, _about) in PROGRAMS.items():
    bench.add_command(_command(_name, _module, _about))
