"""Finds and undoes the mounts that containerd and kubelet left below a folder."""

import contextlib
import ctypes
from pathlib import Path

_DETACH = 2


def below(folder: Path) -> list[str]:
    """Mount points under it, the newest first; one path may stand there several times."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if Path(point).is_relative_to(folder):
            found.append(point)
    return found[::-1]


def undo(folder: Path) -> None:
    """Detached rather than waited for: nothing of the cluster lives any more that could use them."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(FileNotFoundError):
        for point in below(folder):
            libc.umount2(point.encode(), _DETACH)
