"""Run as a program: converts a checkpoint and prints by how many bytes memory peaked above where it stood before.

Arguments: a tiny checkpoint to convert first (so that imports and caches don't count), the checkpoint, the target.
"""

import sys
from pathlib import Path

from moe.models.convert import convert_checkpoint


def status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    tiny, source, out = map(Path, sys.argv[1:])
    convert_checkpoint(tiny, out.with_name("tiny"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew (proc(5))
    before = status("VmRSS")
    convert_checkpoint(source, out)
    print(status("VmHWM") - before)


if __name__ == "__main__":
    main()
