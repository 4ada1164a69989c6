"""`moe version`: what is installed, for a bug report."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click
from moe.cli import output
from moe.cli.options import json_option
from moe.runtime.version import moe_version

_LIBRARIES = ("torch", "transformers", "grpcio", "safetensors", "tokenizers")


@click.command()
@json_option("One JSON object.")
def version(as_json: bool) -> None:
    """Show the versions of moe and of what it stands on."""
    facts = {"moe": moe_version(), "python": platform.python_version(), "system": platform.platform()}
    facts |= {library: _installed(library) for library in _LIBRARIES}
    if as_json:
        output.print_json(facts)
    else:
        print(output.facts_text(facts))


def _installed(library: str) -> str:
    try:
        return installed(library)
    except PackageNotFoundError:
        return "not installed"
