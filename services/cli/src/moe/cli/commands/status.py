"""`moe status`: what is up on this machine, or of a model on a cluster, and how it does."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

import click
from moe.cli import addresses, figures, output
from moe.cli.cluster.deployment import ClusterDeployment
from moe.cli.cluster.link import linked
from moe.cli.cluster.place import Place
from moe.cli.errors import UsageError
from moe.cli.options import json_option, place_options
from moe.cli.status_table import status_table
from moe.cli.supervise.contact import Contact, dialable
from moe.cli.supervise.lifecycle import State
from moe.cli.supervise.samples import Sample, Samples
from moe.cli.supervise.state_file import DeploymentRecord, ProcessRecord
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

_WINDOW_S = 0.5
_TIMEOUT_S = 2.0
_ALIVE = (State.READY.value, State.UNREADY.value)


Shown = DeploymentRecord | ClusterDeployment
"""What a table is made of, wherever it runs."""

Find = Callable[[], Sequence[Shown]]


@click.command(
    epilog="\b\nExamples:\n  moe status\n  moe status --watch\n"
    "  moe status --json | jq '.[].processes[] | {name, share}'\n"
    "  moe status --context dev -n moe --model demo"
)
@click.option("--name", metavar="NAME", help="Only this deployment; an error when it is not up.")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, once a second.")
@json_option("One JSON array of deployments with their processes (one line per look with --watch).")
@place_options
def status(name: str | None, watch: bool, as_json: bool, place: Place) -> None:
    """Show every process that `moe up` runs here: state, rows a second, share, queue, busy time, memory.

    With --context, --namespace or --model: every pod of a model on a cluster.
    """
    if name and place:
        raise UsageError("--name is of this machine, --context, --namespace and --model are of a cluster; choose one")
    with _source(name, place) as find:
        if watch:
            _watch(find, as_json)
        else:
            _show(find, as_json)


@contextlib.contextmanager
def _source(name: str | None, place: Place) -> Iterator[Find]:
    if not place:
        yield lambda: _find(name)
        return
    with linked(os.environ, place) as link:
        yield lambda: [link.deployment()]


def _show(find: Find, as_json: bool) -> None:
    deployments = find()
    samples = asyncio.run(collect(deployments, _WINDOW_S))
    pairs = list(zip(deployments, samples, strict=True))
    if as_json:
        output.print_json([_as_json(*pair) for pair in pairs])
        return
    if not deployments:
        print("nothing is up")
    for pair in pairs:
        output.console().print(_table(*pair))


def _watch(find: Find, as_json: bool) -> None:
    console = output.console()
    if as_json or not console.is_terminal:
        while True:
            _show(find, as_json)
            time.sleep(1.0)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            deployments = find()
            samples = asyncio.run(collect(deployments, 1.0))
            tables = [_table(*pair) for pair in zip(deployments, samples, strict=True)]
            live.update(Group(*tables) if tables else "nothing is up", refresh=True)


def _find(name: str | None) -> list[DeploymentRecord]:
    deployments = addresses.running(os.environ)
    return [addresses.named(deployments, name)] if name else deployments


async def collect(deployments: Sequence[Shown], window_s: float) -> list[Samples]:
    """For each deployment two samples of every process that answers, `window_s` seconds apart."""
    return await asyncio.gather(*(_collect(deployment, window_s) for deployment in deployments))


async def _collect(deployment: Shown, window_s: float) -> Samples:
    samples = Samples()
    processes = [process for process in deployment.processes if process.state in _ALIVE]
    contacts = [Contact(dialable(process.endpoint)) for process in processes]
    for pause in (window_s, 0.0):
        await asyncio.gather(*(_sample(*pair, samples) for pair in zip(processes, contacts, strict=True)))
        await asyncio.sleep(pause)
    await asyncio.gather(*(contact.close() for contact in contacts))
    return samples


async def _sample(process: ProcessRecord, contact: Contact, samples: Samples) -> None:
    if process.name not in samples.wires:
        samples.wires[process.name] = (await contact.describe(_TIMEOUT_S)).wire
    stats = await contact.stats(_TIMEOUT_S)
    if stats is not None:
        samples.add(process.name, Sample(time.monotonic(), stats))


def _ends(deployment: Shown, samples: Samples) -> dict[str, figures.Ends]:
    found = ((process.name, samples.ends(process.name)) for process in deployment.processes)
    return {name: ends for name, ends in found if ends is not None}


def _table(deployment: Shown, samples: Samples) -> RenderableType:
    ends = _ends(deployment, samples)
    rows = figures.rows(deployment.processes, ends)
    table = status_table(deployment.name, deployment.address, rows, figures.summary(ends), samples.wires.values())
    note = deployment.note if isinstance(deployment, ClusterDeployment) else ""
    return Group(table, Text(output.safe(note), style="yellow")) if note else table


def _as_json(deployment: Shown, samples: Samples) -> dict[str, object]:
    ends = _ends(deployment, samples)
    summary = figures.summary(ends)
    return {
        "name": deployment.name,
        "model": deployment.model,
        "package": deployment.package,
        "pid": deployment.pid,
        "address": deployment.address,
        "up": deployment.up,
        "tokens_per_s": summary.tokens_per_s,
        "running": summary.running,
        "waiting": summary.waiting,
        "resident_bytes": summary.resident_bytes,
        "wires": sorted({wire for wire in samples.wires.values() if wire}),
        "processes": [row.as_json() for row in figures.rows(deployment.processes, ends)],
    }
