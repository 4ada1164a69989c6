"""The processes' log files: their last lines for a message, and a bound on their size."""

import contextlib
import shutil
from pathlib import Path

LARGEST_LOG = 16 << 20
"""Bytes of one log, after which it starts anew and the old one is kept beside it as `.1`."""


def path_of(folder: Path, name: str) -> Path:
    """Where a process's output goes."""
    return folder / f"{name}.log"


def tail(path: Path, lines: int = 12, most_bytes: int = 8192) -> list[str]:
    """The last lines; none when there is no such file."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - most_bytes))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def bound(path: Path, largest: int = LARGEST_LOG) -> None:
    """Starts a log anew that has grown too large. Its writer appends, so it goes on at the new start.

    Where there is no room to keep the old lines they are lost; nothing about a log may end a deployment.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size > largest:
            _keep(path, path.with_suffix(".log.1"))
            with path.open("r+b") as log:
                log.truncate(0)


def _keep(path: Path, old: Path) -> None:
    try:
        shutil.copyfile(path, old)
    except OSError:
        old.unlink(missing_ok=True)
