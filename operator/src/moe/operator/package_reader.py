"""What the inspection's pod runs: reads a package's manifest and reports the few facts that the planner needs.

`python -m moe.operator.package_reader FOLDER --report FILE` writes one line of JSON, or, exiting with 2, a sentence
that says what is wrong with the package. It reads the manifest as the contract that it is, without the libraries that
experts need, so that it answers within a second; the experts check every byte of their weights themselves.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST_NAME = "manifest.json"
SCHEMAS = ("moe.package/v1", "moe.package/v2", "moe.package/v3")
_LONGEST_REPORT = 4000
"""Characters; Kubernetes keeps 4096 bytes of a termination message."""


class UnusablePackage(Exception):  # noqa: N818 - says what is wrong without a suffix
    """The folder holds no package that can be served; the message says why and what to do."""


def read_package(folder: Path) -> dict[str, Any]:
    """Facts of the package in a folder, as MoEModel's status has them. Raises UnusablePackage."""
    path = folder / MANIFEST_NAME
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnusablePackage(_nothing_there(folder)) from error
    except OSError as error:
        raise UnusablePackage(f"{MANIFEST_NAME} can't be read: {error.strerror}; pods run as user 65532") from error
    try:
        facts = _facts(json.loads(raw))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnusablePackage(f"{MANIFEST_NAME} is not a package's: {error!r}; convert the model again") from error
    _check_files(folder, facts.pop("files"))
    return {**facts, "digest": hashlib.sha256(raw).hexdigest()}


def _nothing_there(folder: Path) -> str:
    """What there is instead, of the folder or of the nearest one above it that exists."""
    if folder.is_dir():
        what, place = f"there is no {MANIFEST_NAME} in the package's folder, which", folder
    else:
        place = next(each for each in folder.parents if each.is_dir())
        what = f"there is no folder {folder.relative_to(place).parts[0]}; the place where it should be"
    found = sorted(each.name for each in place.iterdir())
    shown = ", ".join(found[:8]) + (" and more" if len(found) > 8 else "")
    return f"{what} holds {shown or 'nothing'}. Copy the package there, or name its folder by package.subPath"


def _facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    if manifest["schema"] not in SCHEMAS:
        raise UnusablePackage(
            f"schema is {str(manifest['schema'])[:60]!r}; this version of moe reads {' and '.join(SCHEMAS)}"
        )
    layers = {int(layer): int(count) for layer, count in manifest["moe_layers"].items()}
    return {
        "name": str(manifest["name"]),
        "experts": max(layers.values()),
        "layers": len(layers),
        "topk": int(manifest["topk"]),
        "files": {str(name): int(facts["size"]) for name, facts in manifest["files"].items()},
    }


def _check_files(folder: Path, sizes: Mapping[str, int]) -> None:
    """Everything that the manifest lists is there in its size: an interrupted copy is found before any pod loads it."""
    for name, size in sorted(sizes.items()):
        path = folder / name
        if not path.is_file():
            raise UnusablePackage(f"{name} is missing; copy the package again")
        if path.stat().st_size != size:
            raise UnusablePackage(f"{name} has {path.stat().st_size} bytes instead of {size}; copy the package again")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 for a package that can't be served."""
    parser = argparse.ArgumentParser(prog="moe.operator.package_reader", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--report", type=Path, required=True, help="file for the facts, or for what is wrong")
    arguments = parser.parse_args(argv)
    try:
        report, code = json.dumps(read_package(arguments.folder)), 0
    except UnusablePackage as error:
        report, code = str(error)[:_LONGEST_REPORT], 2
    print(report)
    arguments.report.write_text(report)
    return code


if __name__ == "__main__":
    sys.exit(main())
