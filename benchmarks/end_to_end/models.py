"""The models that are measured, in every form that an engine takes: checkpoint, package, GGUF; made when not there."""

import json
import sys
from pathlib import Path

from moe.models.catalog import find_package
from moe.models.convert import convert_checkpoint
from moe.models.errors import PackageError
from moe.models.package import Package

from benchmarks.checkpoints import SIZES, ensure_checkpoint
from benchmarks.end_to_end.engines import Model
from benchmarks.end_to_end.peers.gguf_checkpoint import TYPES, write_gguf
from benchmarks.places import benchmarks_home

DEMO = "demo"
NAMES = (*SIZES, DEMO)


def ensure_model(name: str, *, gguf: bool) -> Model:
    """Raises PackageError when the demo model has no package yet. gguf: whether a peer wants it."""
    if name == DEMO:
        package = find_package(DEMO)
        vocabulary = json.loads((package / "backbone" / "config.json").read_bytes())["vocab_size"]
        return Model(DEMO, package, None, {}, vocabulary)
    home, size = benchmarks_home(), SIZES[name]
    checkpoint = ensure_checkpoint(size, home)
    package = _package(f"bench-{name.lower()}", checkpoint, home)
    files = {kind: _gguf(name, kind, checkpoint, home) for kind in TYPES} if gguf else {}
    return Model(name, package, checkpoint, files, size.vocabulary)


def _package(name: str, checkpoint: Path, home: Path) -> Path:
    package = home / "packages" / name
    try:
        Package.open(package, verify="sizes")
    except PackageError:
        print(f"models: converting {name}", file=sys.stderr)
        package.parent.mkdir(parents=True, exist_ok=True)
        convert_checkpoint(checkpoint, package, name=name, licence="none", replace=package.exists())
    return package


def _gguf(name: str, kind: str, checkpoint: Path, home: Path) -> Path:
    target = home / "gguf" / f"{name}-{kind}.gguf"
    if not target.exists():
        print(f"models: writing {target.name}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(checkpoint, target, kind)
    return target
