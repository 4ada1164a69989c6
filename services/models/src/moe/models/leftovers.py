"""Names for what a run makes on the side, and the removal of what killed runs left behind.

A name carries host and process: a pid means nothing on another host that shares the disk.
"""

import glob
import os
import shutil
import socket
from pathlib import Path


def side_name(prefix: str, suffix: str = "") -> str:
    """A name of this process's own. suffix: begins with a hyphen, where there is one."""
    return f"{_mine(prefix)}{os.getpid()}{suffix}"


def remove_leftovers(parent: Path, prefix: str) -> None:
    """Removes directories of `side_name` in `parent` whose process, on this host, is gone."""
    mine = _mine(prefix)
    for left in parent.glob(f"{glob.escape(mine)}*"):
        owner = left.name.removeprefix(mine).split("-")[0]
        if owner.isdecimal() and not _is_running(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _mine(prefix: str) -> str:
    return f"{prefix}{socket.gethostname()}@"


def _is_running(process: int) -> bool:
    """Whether there is a process of this id, whoever's."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
