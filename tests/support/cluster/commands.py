"""Runs other programs to their end; one that fails becomes an error with what it said."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import ClusterError


def run(
    argv: Sequence[str | Path],
    *,
    feed: str | None = None,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> str:
    """What the program printed. environ: on top of this process's. Raises ClusterError when it fails or is late."""
    words = [str(each) for each in argv]
    try:
        done = subprocess.run(
            words,
            input=feed,
            stdin=subprocess.DEVNULL if feed is None else None,
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**os.environ, **(environ or {})},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(words)}: not done after {timeout_s:g} s") from error
    except OSError as error:
        raise ClusterError(f"{words[0]}: {error.strerror or error}; is it installed and on the PATH?") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(words)}: exit {done.returncode}\n{(done.stderr + done.stdout).strip()[-4000:]}")
    return done.stdout
