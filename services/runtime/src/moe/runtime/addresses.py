"""Where a server listens: checks an address and takes a unix socket's path without stealing a live one.

An address is a gRPC target, `unix:/absolute/path` or `host:port` (`[::1]:port` for IPv6; port 0 for a free one).
"""

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from moe.runtime.errors import StartupError

_UNIX = "unix:"
_LONGEST_UNIX_PATH = 107
"""Bytes, by sockaddr_un in unix(7), without the ending zero."""


@dataclass(frozen=True)
class Address:
    """A checked address. path: the unix socket's, None for TCP. file: which file that is, once it is bound."""

    target: str
    path: Path | None
    file: tuple[int, int] | None = None

    def bound(self, port: int) -> "Address":
        """The address as it is now: with the port that the system gave for port 0, or the socket file made for it."""
        if self.path is not None:
            return Address(self.target, self.path, _identity(self.path))
        return Address(f"{self.target.rpartition(':')[0]}:{port}", None)


def parse(text: str) -> Address:
    """Raises StartupError naming the address and what is wrong with it."""
    if text.startswith(_UNIX):
        return _parse_unix(text)
    host, colon, port = text.rpartition(":")
    if not colon or not host or "/" in text or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise StartupError(f"cannot listen on {text!r}: want unix:/absolute/path or host:port")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise StartupError(f"cannot listen on {text!r}: an IPv6 host stands in brackets, [{host}]:{port}")
    return Address(text, None)


def _parse_unix(text: str) -> Address:
    path = text.removeprefix(_UNIX)
    if not path.startswith("/") or path.startswith("//"):
        raise StartupError(f"cannot listen on {text!r}: a unix socket's path has to be absolute, unix:/run/moe/x.sock")
    length = len(os.fsencode(path))
    if length > _LONGEST_UNIX_PATH:
        raise StartupError(f"cannot listen on {text!r}: the path has {length} bytes, {_LONGEST_UNIX_PATH} is the most")
    return Address(text, Path(path))


def bind(address: Address, open_port: Callable[[str], int]) -> Address:
    """Opens the address by `open_port` (which gives back the port), a unix socket under a lock of its directory.

    A socket file that nobody listens on is replaced. Raises StartupError when the address is in use or can't be had.
    """
    with _claimed(address):
        try:
            return address.bound(open_port(address.target))
        except RuntimeError as error:
            raise StartupError(f"cannot listen on {address.target}: {_why_not(address)}") from error


def _why_not(address: Address) -> str:
    """What the system says to the address, which grpcio keeps to itself."""
    if address.path is not None:
        return f"gRPC can't make a socket there; is {address.path.parent} writable?"
    host, _, port = address.target.rpartition(":")
    try:
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        return error.strerror or str(error)
    return "gRPC can't bind it"


def remove(address: Address) -> None:
    """Removes the socket file of a server that has ended, unless another server has taken the path since.

    grpcio removes it too when it stops in good order; this is for when it does not.
    """
    if address.path is None or address.file is None:
        return
    with contextlib.suppress(FileNotFoundError):
        if _identity(address.path) == address.file:
            address.path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    """Inode and time of change: a number that is used again does not deceive."""
    status = path.lstat()
    return status.st_ino, status.st_ctime_ns


@contextlib.contextmanager
def _claimed(address: Address) -> Iterator[None]:
    """Holds the directory's lock, so that of two servers started at once only one finds the path free."""
    if address.path is None:
        yield
        return
    try:
        directory = os.open(address.path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StartupError(f"cannot listen on {address.target}: {address.path.parent}: {error.strerror}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        _clear_stale(address.path)
        yield
    finally:
        os.close(directory)


def _clear_stale(path: Path) -> None:
    """Removes a socket file that nobody listens on. Raises StartupError for a live one or another kind of file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"cannot listen on unix:{path}: the path exists and is not a socket; remove it first")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise StartupError(f"cannot listen on unix:{path}: {error.strerror}") from error
    raise StartupError(f"cannot listen on unix:{path}: another process serves there; stop it or take another path")
