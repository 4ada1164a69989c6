"""The private folder of a running deployment: sockets, logs, directory and state file; gone when it ends.

    <base>/            0700; $XDG_RUNTIME_DIR/moe, or /tmp/moe-<uid> where that is not set
    ├── <name>.lock    held (flock) by the supervisor as long as it lives, however it dies
    └── <name>/        what the processes share

Whoever holds the lock owns the folder: a folder without a held lock was left by a supervisor that was killed.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from moe.cli.errors import CliError, UsageError


class NameTakenError(CliError):
    """Another supervisor holds the lock of this name."""


def base_folder(environ: Mapping[str, str], shared: Path = Path("/tmp")) -> Path:
    """Where deployments live: below $XDG_RUNTIME_DIR, else below `shared` with the user's id in its name.

    It is made when absent. Raises UsageError when it is not this user's alone.
    """
    runtime = environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime).absolute() / "moe" if runtime else shared / f"moe-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
    except OSError as error:
        raise UsageError(f"{base}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of your own") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{base} must be a folder of your own with mode 0700 (it is {stat.filemode(found.st_mode)}, owner "
            f"{found.st_uid}); remove it or set XDG_RUNTIME_DIR"
        )
    return base


@contextmanager
def owned_folder(base: Path, name: str) -> Iterator[Path]:
    """Holds the name and an empty folder for it; removes both at the end. Raises NameTakenError when it is held."""
    lock_path = base / f"{name}.lock"
    lock = _take(lock_path)
    if lock is None:
        raise NameTakenError(name)
    folder = base / name
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock_path.unlink(missing_ok=True)
        os.close(lock)


def clean_stale(base: Path) -> list[str]:
    """Removes what killed supervisors left behind; returns their names."""
    names = {path.name.removesuffix(".lock") for path in base.iterdir() if path.name.endswith(".lock") or path.is_dir()}
    stale = []
    for name in sorted(names):
        try:
            with owned_folder(base, name):
                stale.append(name)
        except NameTakenError:
            continue
    return stale


def _take(path: Path) -> int | None:
    """A descriptor that holds the lock file, or None. A file that was unlinked in between is tried again."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
