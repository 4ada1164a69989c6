"""`moe quantize`: makes a package with 8-bit experts."""

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from moe.cli import output
from moe.cli.options import json_option
from moe.cli.packages import open_package, stored
from moe.cli.progress import reported


@click.command(
    epilog="\b\nExamples:\n  moe quantize demo\n  moe quantize demo /data/packages/demo-int8 --limit 0.02\n"
    "  moe quantize demo --group-size 64 --name demo-int8-64"
)
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
@click.option(
    "--smallest",
    type=int,
    default=0,
    show_default=True,
    metavar="BYTES",
    help="Size of an expert in a layer below which it stays as it is.",
)
@click.option(
    "--group-size",
    type=int,
    metavar="INPUTS",
    help="Inputs of an output channel that share a scale and an offset, a multiple of 16: less error, more bytes and "
    "time. Default: all of them.",
)
@click.option("--force", is_flag=True, help="Replace a package that is there already.")
@json_option("One JSON object with path, name, bytes and every expert's error; no progress.")
def quantize(
    package: str,
    out: Path | None,
    name: str | None,
    limit: float,
    smallest: int,
    group_size: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Make a package with 8-bit experts of PACKAGE, in the store or in OUT.

    Each output channel of each matrix, or each group of its inputs, gets 256 even steps over its own range. Every
    expert of every layer is compared with what it was, on rows that it meets in the calibration text; those above the
    limit stay as they are and are named. The package's perplexity on that text is told before and after. W8A8 is what
    `--kernel native_w8a8` of an expert would make of it.
    """
    from moe.models.convert import check_name, package_name
    from moe.models.quantise import quantise_package

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is half made is removed
    opened = open_package(package)
    chosen = check_name(name or (package_name(out.name) if out else package_name(f"{opened.manifest.name[:35]}-int8")))
    target = stored(chosen) if out is None else out.absolute()
    with reported("quantize", quiet=as_json) as report:
        made = quantise_package(
            opened,
            target,
            name=chosen,
            limit=limit,
            smallest=smallest,
            group_size=group_size,
            replace_existing=force,
            progress=report,
        )
    facts = made.quantisation
    if as_json:
        sizes = {"bytes_before": made.bytes_before, "bytes_after": made.bytes_after}
        told = {"path": str(made.path), "name": chosen, **sizes, "uncalibrated": made.uncalibrated, **facts.to_json()}
        output.print_json(told)
        return
    _print(made)
    print(f"made {made.path}\nbring it up with: moe up {chosen if out is None else made.path}")


def _print(made: Any) -> None:
    """A line for each layer: means over its experts, the worst of them, and who stays; then the whole package."""
    facts, before, after = made.quantisation, made.bytes_before, made.bytes_after
    print("layer  mean error  worst expert  worst row  weights  W8A8 mean  kept")
    for layer, errors in facts.errors.items():
        kept = ", ".join(map(str, facts.kept[layer])) or "none"
        means = [_mean(getattr(each, name) for each in errors) for name in ("mean", "weight", "rounded_rows")]
        worst, row = max(each.mean for each in errors), max(each.greatest for each in errors)
        print(f"{layer:5}  {means[0]:10.3%}  {worst:12.3%}  {row:9.3%}  {means[1]:7.3%}  {means[2]:9.3%}  {kept}")
    shared = "an output channel" if facts.group_size is None else f"{facts.group_size} inputs of an output channel"
    print(f"scales: one for {shared}")
    print(f"experts: {before:,} bytes before, {after:,} after ({after / before:.2f} x)")
    if facts.perplexity is None:
        print(f"errors are over random rows, and there is no perplexity: {made.uncalibrated}")
        return
    found = facts.perplexity
    rounded = "" if found.rounded_rows is None else f", with W8A8 {_changed(found.before, found.rounded_rows)}"
    after = _changed(found.before, found.after)
    print(f"perplexity over {found.tokens} tokens: {found.before:.3f}, then {after}{rounded}")


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _changed(before: float, after: float) -> str:
    return f"{after:.3f} ({after / before - 1:+.2%})"
