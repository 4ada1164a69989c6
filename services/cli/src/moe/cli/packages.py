"""The model packages that commands name, by name in the store or by path.

moe.models.package brings torch along: four seconds and 500 MB that a supervisor has no other use for. So `moe up` reads
the few fields that a plan takes by itself; every part opens the package in full and refuses a bad one.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from moe.operator.planner import ModelFacts

if TYPE_CHECKING:
    from moe.models.package import Package

DEMO = "demo"
"""Name of the model that the project itself brings: a source of `moe convert`, and its package's name in the store."""

_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


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


def planner_facts(name_or_path: str) -> tuple[Path, ModelFacts]:
    """Where a package is and what the planner has to know of it. Raises PackageError as `open_package` does."""
    by_path = Path(name_or_path).absolute()
    for path in (by_path,) if os.sep in name_or_path else (stored(name_or_path), by_path):
        try:
            return path, _read_facts(path)
        except _UNREADABLE:
            continue
    package = open_package(name_or_path)  # which says what is wrong
    return package.path, ModelFacts(package.manifest.name, package.manifest.moe_layers, package.manifest.topk)


def stored(name: str) -> Path:
    """Where a package of that name belongs in the store; the same rule as moe.models.catalog, without torch."""
    home = os.environ.get("MOE_HOME") or "~/.local/share/moe/models"
    return Path(home).expanduser().absolute() / name


def _read_facts(package: Path) -> ModelFacts:
    fields = json.loads((package / "manifest.json").read_bytes())
    layers = {int(layer): int(experts) for layer, experts in fields["moe_layers"].items()}
    if fields["schema"] not in ("moe.package/v1", "moe.package/v2", "moe.package/v3") or not isinstance(
        fields["name"], str
    ):
        raise ValueError("not a manifest that this reads")
    return ModelFacts(fields["name"], layers, int(fields["topk"]))
