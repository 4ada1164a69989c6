"""The model packages that commands name, by name in the store or by path.

moe.models brings torch along, so it is imported where a package is needed, not when the command line starts.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from moe.operator.planner import ModelFacts

if TYPE_CHECKING:
    from moe.models.package import Package

DEMO = "demo"
"""Name of the model that the project itself brings: a source of `moe convert`, and its package's name in the store."""


def open_package(name_or_path: str) -> "Package":
    """Opens a package and checks that all its files are there. Raises PackageError with what there is instead."""
    from moe.models.catalog import find_package
    from moe.models.errors import PackageNotFoundError
    from moe.models.package import Package

    try:
        return Package.open(find_package(name_or_path).absolute())
    except PackageNotFoundError as error:
        if name_or_path != DEMO:
            raise
        raise PackageNotFoundError(f"{error}. Make it with: moe convert {DEMO}") from error


def facts_of(package: "Package") -> ModelFacts:
    """What the planner has to know."""
    manifest = package.manifest
    return ModelFacts(manifest.name, manifest.moe_layers, manifest.topk)


def stored(name: str) -> Path:
    """Where a package of that name belongs in the store."""
    from moe.models.catalog import store_directory

    return store_directory() / name
