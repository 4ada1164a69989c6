"""`moe quantize`: makes a package with 8-bit experts."""

import signal
from pathlib import Path
from typing import Any

import click
from moe.cli import output
from moe.cli.options import json_option
from moe.cli.packages import open_package, stored
from moe.cli.progress import reported


@click.command(epilog="\b\nExamples:\n  moe quantize demo\n  moe quantize demo /data/packages/demo-int8 --limit 0.02")
@click.argument("package")
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the new package. Default: OUT's, or PACKAGE's with -int8.")
@click.option(
    "--limit",
    type=float,
    default=0.03,
    show_default=True,
    metavar="ERROR",
    help="Mean relative error of outputs above which an expert stays as it is.",
)
@click.option("--force", is_flag=True, help="Replace a package that is there already.")
@json_option("One JSON object with path, name, bytes and every expert's error; no progress.")
def quantize(package: str, out: Path | None, name: str | None, limit: float, force: bool, as_json: bool) -> None:
    """Make a package with 8-bit experts of PACKAGE, in the store or in OUT.

    Each output channel of each matrix gets 256 even steps over its own range. Every expert of every layer is compared
    with what it was, on fixed random rows; those above the limit stay as they are and are named.
    """
    from moe.models.convert import check_name, package_name
    from moe.models.quantise import quantise_package

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is half made is removed
    opened = open_package(package)
    chosen = check_name(name or (package_name(out.name) if out else package_name(f"{opened.manifest.name[:35]}-int8")))
    target = stored(chosen) if out is None else out.absolute()
    with reported("quantize", quiet=as_json) as report:
        made = quantise_package(opened, target, name=chosen, limit=limit, replace_existing=force, progress=report)
    facts = made.quantisation
    if as_json:
        sizes = {"bytes_before": made.bytes_before, "bytes_after": made.bytes_after}
        output.print_json({"path": str(made.path), "name": chosen, **sizes, **facts.to_json()})
        return
    _print(facts, made.bytes_before, made.bytes_after)
    print(f"made {made.path}\nbring it up with: moe up {chosen if out is None else made.path}")


def _print(facts: Any, before: int, after: int) -> None:
    """A line for each layer: the mean over its experts, the worst of them, and who stays."""
    print("layer  mean error  worst expert's mean  greatest error of a row  kept")
    for layer, pairs in facts.errors.items():
        means = [mean for mean, _ in pairs]
        kept = ", ".join(map(str, facts.kept[layer])) or "none"
        worst = max(greatest for _, greatest in pairs)
        print(f"{layer:5}  {sum(means) / len(means):10.3%}  {max(means):19.3%}  {worst:23.3%}  {kept}")
    print(f"experts: {before:,} bytes before, {after:,} after ({after / before:.2f} x)")
