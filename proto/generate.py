"""Generates moe.api from the .proto sources.

The sources live at moe/<noun>/v1, without `api`, so that packages read `moe.expert.v1` on the wire; in Python the
code lives in moe.api.<noun>.v1. The sources are staged under that path, with their imports adapted, before protoc runs.
`--check` only compares: it exits 1 and names what is stale.
"""

import argparse
import filecmp
import re
import shutil
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

HERE = Path(__file__).parent
TARGET = HERE / "src" / "moe" / "api"
MYPY_NOTE = "# mypy: ignore-errors\n# ruff: noqa\n"


def stage(into: Path) -> list[str]:
    """Copies the sources below `into`/moe/api and returns their paths relative to `into`."""
    names = []
    for source in sorted((HERE / "moe").rglob("*.proto")):
        name = Path("moe/api") / source.relative_to(HERE / "moe")
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub(r'import "moe/', 'import "moe/api/', source.read_text()))
        names.append(str(name))
    return names


def stub_arguments(kind: str, into: Path) -> list[str]:
    """Has protoc run a plugin of mypy-protobuf, from this interpreter's own environment."""
    plugin = f"protoc-gen-{kind}"
    return [f"--plugin={plugin}={Path(sys.executable).with_name(plugin)}", f"--{kind}_out=quiet:{into}"]


def generate(into: Path) -> None:
    """Writes the modules and their type stubs below `into`."""
    with tempfile.TemporaryDirectory() as staging:
        names = stage(Path(staging))
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python")]
        stubs = [argument for kind in ("mypy", "mypy_grpc") for argument in stub_arguments(kind, into)]
        arguments = ["protoc", f"-I{staging}", f"-I{well_known}", *outputs, *stubs, *names]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed; its message stands above")
    for module in into.rglob("*_pb2_grpc.py"):
        module.write_text(MYPY_NOTE + module.read_text())


def relative_files(root: Path) -> set[Path]:
    """The generated files below `root`."""
    return {p.relative_to(root) for p in root.rglob("*_pb2*") if p.suffix in (".py", ".pyi")}


def stale_files(fresh: Path) -> list[str]:
    """Names of committed files that differ from, or are missing in, `fresh`, and the other way round."""
    ours, theirs = relative_files(TARGET), relative_files(fresh)
    both = [p for p in ours & theirs if not filecmp.cmp(TARGET / p, fresh / p, shallow=False)]
    return sorted(str(p) for p in both + list(ours ^ theirs))


def main() -> int:
    """Command line: generate, or compare with --check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when something is stale")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = Path(scratch) / "moe" / "api"
        stale = stale_files(fresh)
        if arguments.check:
            print("\n".join(f"stale: {name}; run `make proto`" for name in stale) or "generated code is fresh")
            return 1 if stale else 0
        for old in relative_files(TARGET):
            (TARGET / old).unlink()
        shutil.copytree(fresh, TARGET, dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
