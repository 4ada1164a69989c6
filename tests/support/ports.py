"""Addresses for servers in tests."""

import socket
from pathlib import Path


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_address() -> str:
    """A `host:port` target that nobody listens on at this moment."""
    return f"127.0.0.1:{free_port()}"


def unix_address(folder: Path, name: str = "s") -> str:
    """A unix target in a folder; keep folder names short, the path may have 107 bytes."""
    return f"unix:{folder}/{name}.sock"
