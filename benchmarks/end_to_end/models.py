"""The models that are measured, in every form that an engine takes: checkpoint, package, GGUF; made when not there."""

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from moe.models.catalog import find_package
from moe.models.convert import convert_checkpoint
from moe.models.demo import write_demo_checkpoint
from moe.models.demo.build import ADAPTER
from moe.models.errors import PackageError
from moe.models.manifest import MANIFEST_NAME
from moe.models.package import Package, sha256_of_file
from moe.models.quantise import quantise_package

from benchmarks.checkpoints import DONE, SIZES, ensure_checkpoint
from benchmarks.end_to_end.answers import ensure_reference
from benchmarks.end_to_end.engines import Model
from benchmarks.end_to_end.peers.gguf_checkpoint import TYPES, write_gguf
from benchmarks.places import benchmarks_home, made_from

DEMO = "demo"
NAMES = (*SIZES, DEMO)


def ensure_model(name: str, *, gguf: bool, weights: Sequence[str]) -> Model:
    """Raises PackageError when the demo model has no package yet. gguf: whether a peer wants it. weights: of our
    experts that are wanted."""
    home = benchmarks_home()
    if name == DEMO:
        package, checkpoint = find_package(DEMO), _demo_checkpoint(home)
    else:
        checkpoint = ensure_checkpoint(SIZES[name], home)
        package = _package(f"bench-{name.lower()}", checkpoint, home)
    vocabulary = json.loads((checkpoint / "config.json").read_bytes())["vocab_size"]
    files = _gguf(checkpoint) if gguf else {}
    packages = {"bf16": package}
    if "int8" in weights:
        packages["int8"] = _quantised(package, home)
    return Model(name, packages, checkpoint, files, vocabulary, ensure_reference(checkpoint))


def _demo_checkpoint(home: Path) -> Path:
    """The demo model before it became a package: as transformers reads it; anew when its adapter is another."""
    folder = home / "checkpoints" / DEMO
    done, wanted = folder / "checkpoint.done", hashlib.sha256(ADAPTER.read_bytes()).hexdigest()
    if not made_from(done, wanted):
        shutil.rmtree(folder, ignore_errors=True)
        print("models: writing the demo model's checkpoint", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_demo_checkpoint(folder)
        done.write_text(wanted, encoding="ascii")
    return folder


def _package(name: str, checkpoint: Path, home: Path) -> Path:
    """Converted anew when the checkpoint is another."""
    package = home / "packages" / name
    done, wanted = package.with_suffix(".source"), (checkpoint / DONE).read_text(encoding="utf-8")
    if not made_from(done, wanted) or not _whole(package):
        print(f"models: converting {name}", file=sys.stderr)
        package.parent.mkdir(parents=True, exist_ok=True)
        convert_checkpoint(checkpoint, package, name=name, licence="none", replace=package.exists())
        done.write_text(wanted, encoding="utf-8")
    return package


def _whole(package: Path) -> bool:
    try:
        Package.open(package, verify="sizes")
    except PackageError:
        return False
    return True


def _quantised(package: Path, home: Path) -> Path:
    """Made anew when the package is another."""
    target = home / "packages" / f"{package.name}-int8"
    done, wanted = target.with_suffix(".source"), sha256_of_file(package / MANIFEST_NAME)
    if not made_from(done, wanted) or not _whole(target):
        print(f"models: quantising {package.name}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        quantise_package(Package.open(package), target, replace_existing=target.exists())
        done.write_text(wanted, encoding="ascii")
    return target


def _gguf(checkpoint: Path) -> Mapping[str, Path]:
    """Beside the checkpoint, so that they go when it is made anew."""
    files = {kind: checkpoint / "gguf" / f"{kind}.gguf" for kind in TYPES}
    for kind, target in files.items():
        if not target.exists():
            print(f"models: writing {checkpoint.name} as GGUF, {kind}", file=sys.stderr)
            target.parent.mkdir(exist_ok=True)
            write_gguf(checkpoint, target, kind)
    return files
