"""Checks a package on disk as a whole, offline: every listed file, byte for byte, and nothing else beside them.

Opening a package checks what a service needs; this checks what its owner wants to know, and goes on after the first
problem. It needs nothing of transformers.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moe.models.errors import PackageError
from moe.models.manifest import BACKBONE_DIRECTORY, EXPERTS_DIRECTORY, MANIFEST_NAME, PROBES_NAME, expert_file
from moe.models.package import Package, read_expert_header
from moe.models.progress import Meter, Progress, silent
from moe.models.safetensors_stream import (
    DTYPES,
    SafetensorsError,
    TensorEntry,
    finite,
    read_chunks,
    read_header,
)

_INDEX = f"{BACKBONE_DIRECTORY}/model.safetensors.index.json"


@dataclass(frozen=True)
class VerifyReport:
    """What a check found. problems: one line each, with the file's name; none means that the package is sound."""

    path: Path
    name: str
    manifest_sha256: str
    files: int
    total_bytes: int
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_package(path: Path, progress: Progress = silent) -> VerifyReport:
    """Checks all files of a package: kind, size, sha256, headers against the manifest, finite numbers, extra files.

    Raises PackageError only when the manifest itself can't be used; everything else is in the report.
    """
    package = Package.open(path, verify="none")
    manifest = package.manifest
    meter = Meter(progress, manifest.total_bytes)
    problems = [*_extra_files(package)]
    for name, facts in manifest.files.items():
        problems += _problems(package, name)
        meter.add(facts.size, name)
    problems += _index_problems(package)
    meter.finish("done")
    return VerifyReport(
        path=package.path,
        name=manifest.name,
        manifest_sha256=package.manifest_sha256,
        files=len(manifest.files),
        total_bytes=manifest.total_bytes,
        problems=tuple(problems),
    )


def _problems(package: Package, name: str) -> list[str]:
    """What is wrong with one listed file; the content is looked at even when its hash is wrong, to say what is."""
    found = []
    for check in (_check_hash, _check_content):
        try:
            check(package, name)
        except PackageError as error:
            found.append(str(error))
        if found and not (package.path / name).is_file():
            break
    return found


def _check_hash(package: Package, name: str) -> None:
    package.check_file(name, sha256=True)


def _check_content(package: Package, name: str) -> None:
    path = package.path / name
    package.check_file(name)
    try:
        if name == PROBES_NAME:
            package.probe(min(package.manifest.moe_layers), 0)
        elif name.startswith(f"{EXPERTS_DIRECTORY}/"):
            expert = next(e for e in range(package.manifest.expert_count) if expert_file(e) == name)
            _check_finite(path, read_expert_header(path, package.expert_tensors(expert)))
        elif name.endswith(".safetensors"):
            _check_finite(path, read_header(path))
        elif name.endswith(".json"):
            json.loads(path.read_bytes().decode("utf-8"))
    except SafetensorsError as error:
        raise PackageError(str(error)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(f"is not readable: {error}", file=path) from error


def _check_finite(path: Path, entries: dict[str, TensorEntry]) -> None:
    for name, entry in entries.items():
        if not all(finite(piece, DTYPES[entry.spec.dtype]) for piece in read_chunks(path, entry)):
            raise PackageError(f"tensor {name!r} holds a number that is not finite", file=path)


def _extra_files(package: Package) -> Iterator[str]:
    listed = {*package.manifest.files, MANIFEST_NAME}
    for directory, names, files in os.walk(package.path):
        below = Path(directory).relative_to(package.path)
        links = [name for name in names if (Path(directory) / name).is_symlink()]
        for name in sorted([*files, *links]):
            if (below / name).as_posix() not in listed:
                yield f"file {Path(directory) / name}: is not listed in the manifest"


def _index_problems(package: Package) -> list[str]:
    """Whether the backbone's index names just the tensors of its files; unreadable files are told elsewhere."""
    if _INDEX not in package.manifest.files:
        return []
    path = package.path / _INDEX
    try:
        weight_map = json.loads(path.read_bytes()).get("weight_map")
        held = {
            tensor: Path(name).name
            for name in package.manifest.files
            if name.startswith(f"{BACKBONE_DIRECTORY}/") and name.endswith(".safetensors")
            for tensor in read_header(package.path / name)
        }
    except (OSError, ValueError, AttributeError, RecursionError):
        return []
    return [] if weight_map == held else [f"file {path}: does not name the tensors that the backbone's files hold"]
