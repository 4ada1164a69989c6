"""The programs that come from Debian rather than from Go: installed when missing, when this is root's machine."""

import os
import shutil

from .binaries import Say
from .commands import run
from .errors import ClusterError
from .pins import DEBIAN_PACKAGES


def ensure(say: Say) -> None:
    """Raises ClusterError that names what is missing and how to get it."""
    missing = sorted(package for command, package in DEBIAN_PACKAGES.items() if not shutil.which(command))
    if not missing:
        return
    wanted = " ".join(missing)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ClusterError(f"missing: {wanted}. As root: apt-get install --no-install-recommends {wanted}")
    say(f"installing {wanted}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], environ=quiet, timeout_s=600)
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], environ=quiet, timeout_s=900)
