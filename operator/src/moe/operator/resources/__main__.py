"""Writes the CustomResourceDefinitions: `python -m moe.operator.resources FOLDER...`; with --check it only compares.

k8s/crds and charts/moe/crds hold what this writes, so that neither can differ from the types.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from moe.operator.resources.definitions import definitions

_HEAD = "# Written by `make manifests` from the types in moe.operator.resources. Change those, not this.\n"


def texts() -> dict[str, str]:
    """File name -> YAML of every definition."""
    return {
        f"{each['metadata']['name']}.yaml": _HEAD + yaml.safe_dump(each, sort_keys=False, width=120)
        for each in definitions()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0; with --check 1 when a file is stale, naming it."""
    parser = argparse.ArgumentParser(prog="moe.operator.resources", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args(argv)
    stale = [
        folder / name
        for folder in arguments.folders
        for name, text in texts().items()
        if not (folder / name).is_file() or (folder / name).read_text() != text
    ]
    for path in stale:
        if arguments.check:
            print(f"{path} is stale; run `make manifests`", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts()[path.name])
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
