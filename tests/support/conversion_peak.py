"""Run as a program: converts checkpoints and prints by how many bytes memory peaked above where it stood before each.

Arguments: a tiny checkpoint to convert first (so that imports and caches don't count), a directory for the results,
then the checkpoints.
"""

import sys
from pathlib import Path

from moe.models.convert import convert_checkpoint


def status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak(source: Path, out: Path) -> int:
    """Bytes by which a conversion's highest resident size lies above the size before it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew (proc(5))
    before = status("VmRSS")
    convert_checkpoint(source, out)
    return status("VmHWM") - before


def main() -> None:
    """Prints one line per checkpoint."""
    tiny, results, *sources = map(Path, sys.argv[1:])
    convert_checkpoint(tiny, results / "tiny")
    for source in sources:
        print(peak(source, results / source.name), flush=True)


if __name__ == "__main__":
    main()
