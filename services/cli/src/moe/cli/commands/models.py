"""`moe models`: the packages in the store."""

from typing import TYPE_CHECKING, Any

import click
from moe.cli import output
from moe.cli.errors import EXIT_OK, EXIT_USAGE
from moe.cli.options import json_option
from moe.cli.packages import open_package
from moe.cli.progress import reported
from rich.table import Table

if TYPE_CHECKING:
    from moe.models.catalog import Summary
    from moe.models.package import Package


@click.group(
    epilog="\b\nExamples:\n  moe models list\n"
    "  moe models show demo\n  moe models verify demo\n  moe models remove demo --yes"
)
def models() -> None:
    """List, show, verify and remove model packages.

    The store is $MOE_HOME, else ~/.local/share/moe/models.
    """


@models.command("list")
@json_option("One JSON array.")
def list_models(as_json: bool) -> None:
    """List the packages of the store."""
    from moe.models.catalog import list_packages, store_directory

    found = list_packages()
    if as_json:
        output.print_json([_summary_json(each) for each in found])
    elif found:
        output.console().print(_table(found))
    else:
        print(f"no packages in {store_directory()}; make one with `moe convert demo`")


@models.command()
@click.argument("package")
@json_option("The same as one JSON object.")
def show(package: str, as_json: bool) -> None:
    """Show what PACKAGE (a name or a path) holds and where it comes from."""
    facts = _facts(open_package(package))
    if as_json:
        output.print_json(facts)
    else:
        print(output.facts_text({name: output.safe(str(value)) for name, value in facts.items()}))


@models.command()
@click.argument("package")
@json_option("One JSON object; problems is empty for a sound package.")
def verify(package: str, as_json: bool) -> int:
    """Check every file of PACKAGE (a name or a path), offline.

    Compares sha256 and shapes and looks for numbers that are not finite. Exit code 2 if something is wrong.
    """
    from moe.models.catalog import find_package
    from moe.models.verify import verify_package

    with reported("verify", quiet=as_json) as report:
        result = verify_package(find_package(package), report)
    if as_json:
        facts = {"path": str(result.path), "name": result.name, "manifest_sha256": result.manifest_sha256}
        output.print_json({**facts, "sound": result.sound, "problems": list(result.problems)})
    elif result.sound:
        print(f"{result.name}: {result.files} files, {output.bytes_text(result.total_bytes)}, all sound")
    for problem in result.problems:
        output.print_error(output.safe(problem))
    return EXIT_OK if result.sound else EXIT_USAGE


@models.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
def remove(name: str, yes: bool) -> None:
    """Remove the package NAME from the store."""
    from moe.models.catalog import find_package, remove_package

    find_package(name)
    if not yes:
        click.confirm(f"remove {name}?", abort=True)
    print(f"removed {remove_package(name)}")


def _table(found: "list[Summary]") -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "family", "experts", "layers", "top-k", "dtype", "size", "licence"):
        table.add_column(column, no_wrap=True)
    for each in found:
        if each.manifest is None:
            table.add_row(each.name, f"unreadable: {output.safe(each.problem or '')}")
            continue
        m = each.manifest
        counts = [str(m.expert_count), str(len(m.moe_layers)), str(m.topk), m.dtype, output.bytes_text(m.total_bytes)]
        table.add_row(each.name, m.family, *counts, output.safe(m.licence))
    return table


def _summary_json(each: "Summary") -> dict[str, Any]:
    family = each.manifest.family if each.manifest else None
    facts = {"name": each.name, "path": str(each.path), "bytes": each.total_bytes}
    return {**facts, "family": family, "problem": each.problem}


def _facts(package: "Package") -> dict[str, Any]:
    m = package.manifest
    return {
        "name": m.name,
        "path": str(package.path),
        "manifest_sha256": package.manifest_sha256,
        "schema": m.schema,
        "family": m.family,
        "architecture": m.architecture,
        "dtype": m.dtype,
        "layers": m.layers,
        "moe_layers": len(m.moe_layers),
        "experts": m.expert_count,
        "topk": m.topk,
        "hidden": m.hidden,
        "expert_inner": m.experts.inner,
        "vocabulary": m.vocabulary,
        "tokenizer": m.has_tokenizer,
        "bytes": m.total_bytes,
        "files": len(m.files),
        "source": m.source,
        "licence": m.licence,
        "notice": m.notice,
    }
