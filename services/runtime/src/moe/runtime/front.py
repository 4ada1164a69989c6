"""A server before the gRPC server: it takes the public address and passes on what it does not serve itself.

A service whose streams are served by native code has one. The gRPC server with health, reflection and control then
listens on a private unix socket, and the front hands such calls through.
"""

import socket
import tempfile
from pathlib import Path
from typing import Protocol

from moe.runtime import addresses
from moe.runtime.addresses import Address

_BACKLOG = 128


class Front(Protocol):
    """What serves before the gRPC server."""

    def serve(self, listener: socket.socket, back_end: str) -> None:
        """Serves on a listening socket, which it takes over. back_end: gRPC target for all that is not its own."""

    async def stop(self) -> None:
        """Ends every connection; serves no more."""


class PrivateSocket:
    """A unix socket for the gRPC server behind a front, in a folder that nobody else may enter."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="moe-")
        self.target = f"unix:{Path(self._folder.name) / 'behind.sock'}"

    def remove(self) -> None:
        """The folder goes, with what is in it."""
        self._folder.cleanup()


def listen(wanted: Address) -> tuple[Address, socket.socket]:
    """The public address as a listening socket. Raises StartupError as `addresses.bind` does."""
    opened: list[socket.socket] = []

    def open_port(target: str) -> int:
        try:
            opened.append(_socket(wanted, target))
        except OSError as error:
            raise RuntimeError(str(error)) from error
        return 0 if wanted.path else int(opened[0].getsockname()[1])

    return addresses.bind(wanted, open_port), opened[0]


def _socket(wanted: Address, target: str) -> socket.socket:
    if wanted.path is not None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(str(wanted.path))
            made.listen(_BACKLOG)
        except OSError:
            made.close()
            raise
        return made
    host, _, port = target.rpartition(":")
    bare = host.strip("[]")
    everywhere = bare == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(
        (bare, int(port)),
        family=socket.AF_INET6 if host.startswith("[") else socket.AF_INET,
        backlog=_BACKLOG,
        dualstack_ipv6=everywhere,
    )
