"""The packages of this machine: a store directory with one package per name, and how a name or path finds one.

The store is `$MOE_HOME`, else `~/.local/share/moe/models`. It knows nothing of what a package computes.
"""

import difflib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moe.models.errors import PackageError, PackageNotFoundError
from moe.models.manifest import NAME_PATTERN, Manifest
from moe.models.package import PARTIAL_MARK, Package, is_package

HOME_VARIABLE = "MOE_HOME"


@dataclass(frozen=True)
class Summary:
    """A package of the store. manifest is None when it can't be read; then `problem` says why."""

    name: str
    path: Path
    total_bytes: int
    manifest: Manifest | None
    problem: str | None


def store_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where packages are kept; the directory may not exist yet."""
    home = environment.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser()
    return Path("~/.local/share/moe/models").expanduser()


def list_packages(store: Path | None = None) -> list[Summary]:
    """All packages of the store by name, also those that can't be read; other directories are left out."""
    directory = store or store_directory()
    if not directory.is_dir():
        return []
    return [summarise(path) for path in sorted(directory.iterdir()) if is_package(path)]


def summarise(path: Path) -> Summary:
    """A package's name, size and manifest, or the reason why it can't be read."""
    try:
        manifest = Package.open(path, verify="sizes").manifest
    except PackageError as error:
        return Summary(path.name, path, 0, None, str(error))
    return Summary(path.name, path, manifest.total_bytes, manifest, None)


def find_package(name_or_path: str | Path, store: Path | None = None) -> Path:
    """The directory of a package: a name of the store, else a path.

    Raises PackageNotFoundError that lists names like it.
    """
    text = str(name_or_path)
    directory = store or store_directory()
    if _is_name(text) and is_package(directory / text):
        return directory / text
    if is_package(Path(text)):
        return Path(text)
    raise PackageNotFoundError(_not_found(text, directory))


def remove_package(name: str, store: Path | None = None) -> Path:
    """Removes a package from the store and returns where it was; packages elsewhere are never removed.

    Raises PackageNotFoundError.
    """
    directory = store or store_directory()
    path = directory / name
    if not _is_name(name) or path.is_symlink() or not is_package(path):
        raise PackageNotFoundError(_not_found(name, directory))
    # Renamed first, so that no half-removed package is ever found by its name.
    doomed = path.with_name(f"{name}{PARTIAL_MARK}{secrets.token_hex(4)}")
    path.rename(doomed)
    shutil.rmtree(doomed)
    return path


def _is_name(text: str) -> bool:
    return re.fullmatch(NAME_PATTERN, text) is not None


def _not_found(text: str, store: Path) -> str:
    names = [path.name for path in sorted(store.iterdir()) if is_package(path)] if store.is_dir() else []
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.4) or names[:5]
    hint = f"there are {', '.join(near)}" if near else "the store is empty; `moe convert` makes packages"
    return f"there is no package {text!r}, neither in the store {store} nor as a directory; {hint}"
