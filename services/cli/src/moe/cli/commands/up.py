"""`moe up`: brings a model up on this machine and keeps it up."""

import os
import re
from pathlib import Path
from typing import Any

import click
from moe.cli import output
from moe.cli.launch import Launch, prepared
from moe.cli.options import json_option
from moe.cli.packages import planner_facts
from moe.cli.run import run_in_foreground
from moe.cli.supervise.layout import Options
from moe.cli.views import JsonLines, Lines, LiveTable, View
from moe.operator.planner import ModelFacts, Placement, Wishes
from moe.runtime.process import available_cores

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def _checked_name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r}: at most 40 lower-case letters, digits and hyphens")
    return value


def _replicas_for(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for value in values:
        group, equals, count = value.partition("=")
        if not equals or not count.isdecimal():
            raise click.BadParameter(f"{value!r} is not GROUP=N, such as demo-003=2")
        chosen[group] = int(count)
    return chosen


@click.command(
    epilog="\b\nExamples:\n"
    "  moe up demo\n"
    "  moe up demo --groups 4 --replicas 2\n"
    "  moe up ./packages/mixtral --replicas-for mixtral-003=2 --tcp --listen 0.0.0.0:50051\n"
    "  moe up demo --aggregator embedded --json | jq -r .event\n\n"
    "Every other setting of the parts comes from the environment, such as MOE_SCHEDULING_MAX_RUNNING=32; see\n"
    "`python -m moe.router --help`, moe.expert and moe.aggregator.\n\n"
    "\b\nCtrl-C ends everything after requests had 10 s to finish; a second one does not wait.\n"
    "Exit codes: 0 ended by SIGTERM, 130 by Ctrl-C, 1 could not come up, 2 wrong usage or package."
)
@click.argument("package")
@click.option(
    "--groups", type=int, metavar="N", help="Number of expert groups, one process each. Default: one per expert."
)
@click.option("--experts-per-group", type=int, metavar="N", help="Experts in a group, instead of --groups.")
@click.option("--replicas", type=int, default=1, show_default=True, metavar="N", help="Processes of each group.")
@click.option(
    "--replicas-for",
    multiple=True,
    callback=_replicas_for,
    metavar="GROUP=N",
    help="Processes of one group; repeatable.",
)
@click.option(
    "--aggregator",
    type=click.Choice([placement.value for placement in Placement]),
    default=Placement.PROCESS.value,
    show_default=True,
    help="Where partial sums are added: an own process over TCP, beside the router on a unix socket, or inside it.",
)
@click.option("--tcp", is_flag=True, help="Ports of 127.0.0.1 instead of unix sockets in a private folder.")
@click.option("--listen", metavar="ADDRESS", help="The router's address: host:port or unix:/path.")
@click.option("--name", callback=_checked_name, metavar="NAME", help="Name of the deployment. Default: the model's.")
@click.option(
    "--missing-policy",
    type=click.Choice(["wait", "renormalise", "fail"]),
    help="What to do about an expert that does not answer. Default: wait.",
)
@click.option("--layer-timeout", type=click.FloatRange(0, min_open=True), metavar="S", help="Seconds a layer may take.")
@click.option("--deterministic", is_flag=True, help="Same tokens to the bit whatever shares the batch; slower.")
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), help="Of weights and sums. Default: auto."
)
@click.option("--threads", type=int, metavar="N", help="Threads of the router. Default: the cores.")
@click.option("--expert-threads", type=int, metavar="N", help="Threads of each expert. Default: cores / experts.")
@click.option("--kv-tokens", type=click.IntRange(1), metavar="N", help="Tokens that the key-value cache holds.")
@click.option(
    "--ready-timeout", type=click.FloatRange(0, min_open=True), default=300, show_default=True, metavar="S",
    help="Seconds until everything has to be ready.",
)  # fmt: skip
@click.option(
    "--wire", type=click.Choice(["auto", "native", "grpcio"]), envvar="MOE_WIRE",
    help="Implementation of the streams between the parts. Default: native where it is built, else grpcio.",
)  # fmt: skip
@click.option("--log-dir", type=click.Path(path_type=Path), help="Keep the processes' logs here after the end.")
@click.option("--no-table", is_flag=True, help="Lines instead of the live table, in a terminal too.")
@json_option("One JSON object per event.")
def up(package: str, no_table: bool, as_json: bool, **chosen: Any) -> int:
    """Bring up PACKAGE (a name in the store, or a path) and keep it up.

    Starts a router, an aggregator and a process for every expert group, waits until all are ready, restarts what
    crashes, and shows a live table until Ctrl-C.
    """
    path, facts = planner_facts(package)
    launch = launch_of(path, facts, chosen)
    with prepared(launch, os.environ) as deployment:
        return run_in_foreground(deployment, _view(no_table=no_table, as_json=as_json))


def launch_of(path: Path, facts: ModelFacts, chosen: dict[str, Any]) -> Launch:
    """The options of the command line as a launch."""
    wishes = Wishes(
        cores=available_cores(),
        groups=chosen["groups"],
        experts_per_group=chosen["experts_per_group"],
        replicas=chosen["replicas"],
        replicas_for=chosen["replicas_for"],
        aggregator=Placement(chosen["aggregator"]),
        router_threads=chosen["threads"],
        expert_threads=chosen["expert_threads"],
    )
    options = Options(
        deterministic=chosen["deterministic"],
        dtype=chosen["dtype"],
        missing_policy=chosen["missing_policy"],
        layer_timeout_s=chosen["layer_timeout"],
        kv_tokens=chosen["kv_tokens"],
        wire=chosen["wire"],
    )
    return Launch(
        package=path,
        model=facts,
        wishes=wishes,
        options=options,
        name=chosen["name"],
        tcp=chosen["tcp"],
        listen=chosen["listen"],
        ready_timeout_s=chosen["ready_timeout"],
        logs=chosen["log_dir"],
    )


def _view(*, no_table: bool, as_json: bool) -> View:
    if as_json:
        return JsonLines()
    console = output.console()
    return LiveTable(console) if console.is_terminal and not no_table else Lines(console)
