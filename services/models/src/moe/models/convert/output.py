"""The directory that a package is made in: it becomes the package in one step, or never looks like one.

Work goes on in `<out>.partial-<random>`, beside the target. Its owner holds a lock on it; what a killed run leaves has
no holder and is removed by the next. The manifest is written last, everything is flushed, then the directory renamed.
"""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moe.models.errors import DiskFullError, OutputError
from moe.models.package import PARTIAL_MARK, is_package

_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_target(out: Path, *, replace: bool) -> None:
    """Raises OutputError when something is in the way: anything at all, or with `replace` anything but a package."""
    if not (out.exists() or out.is_symlink()):
        return
    if not replace:
        raise OutputError(f"{out} exists already; remove it, choose another target, or replace it (--force)")
    if out.is_symlink() or not is_package(out):
        raise OutputError(f"{out} exists and is no model package, so it is not replaced; choose another target")


def check_space(directory: Path, needed: int) -> None:
    """Raises DiskFullError when the disk has less than `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise DiskFullError(directory, needed=needed, free=free)


@contextmanager
def partial_directory(out: Path, needed: int, *, replace: bool = False) -> Iterator[Path]:
    """A fresh directory to make a package in; becomes `out` when the block ends, vanishes when it raises.

    needed: bytes that the package will take, for the message. replace: a package at `out` gives way.
    Raises OutputError, DiskFullError.
    """
    partial = out.with_name(f"{out.name}{PARTIAL_MARK}{secrets.token_hex(4)}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
        check_space(out.parent, needed)
        partial.mkdir()
    except OSError as error:
        raise OutputError(f"{out} can't be written: {error.strerror}") from error
    descriptor = _lock(partial)
    try:
        yield partial
        _publish(partial, out, replace=replace)
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(out.parent, needed=needed, free=shutil.disk_usage(out.parent).free) from error
        raise OutputError(f"{error.filename or out} can't be written: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers(out: Path) -> None:
    """Removes what interrupted conversions to the same target have left, but nothing that is being worked on."""
    for path in sorted(out.parent.glob(f"{_escaped(out.name)}{PARTIAL_MARK}*")):
        if path.is_dir() and not path.is_symlink() and not _is_held(path):
            shutil.rmtree(path, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _lock(partial: Path) -> int:
    """Locks the directory itself: a lock file would have to go before the directory becomes a package."""
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _is_held(partial: Path) -> bool:
    try:
        descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _publish(partial: Path, out: Path, *, replace: bool) -> None:
    for directory, _, _ in os.walk(partial):
        sync_directory(Path(directory))
    replaced = None
    if replace and is_package(out):
        replaced = out.with_name(f"{out.name}{PARTIAL_MARK}{secrets.token_hex(4)}")
        out.rename(replaced)
    try:
        partial.rename(out)
    except OSError as error:
        if replaced is not None and not out.exists():
            replaced.rename(out)
        raise OutputError(f"{out} appeared while the package was made; nothing was written") from error
    sync_directory(out.parent)
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def sync_directory(directory: Path) -> None:
    """Flushes a directory's entries to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
