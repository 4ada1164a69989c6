"""The supervisor's end of the fork server: starts it in a session of its own and turns its messages into calls.

A session of its own keeps a terminal's Ctrl-C from the parts: the supervisor alone decides in which order they end.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from moe.cli.supervise.nursery import MESSAGE_BYTES
from moe.cli.supervise.spec import ProcessSpec


class ForkEvents(Protocol):
    """What the fork server tells."""

    def loaded(self) -> None:
        """The parts are imported."""

    def broken(self, reason: str) -> None:
        """The parts can't be imported or forked from."""

    def spawned(self, name: str, pid: int) -> None:
        """A process runs."""

    def exited(self, name: str, code: int, reason: str) -> None:
        """A process ended."""

    def lost(self) -> None:
        """The fork server is gone, and every process with it."""


class ForkServer:
    """A running fork server. Made and used in the thread of a running asyncio loop, which must live as long as it."""

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str], log: Path, events: ForkEvents) -> None:
        self._events = events
        self._unsent: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(theirs.fileno(), modules),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._loop.add_reader(self._socket.fileno(), self._read)

    def spawn(self, spec: ProcessSpec, log: Path) -> None:
        """Has a process forked; `spawned` follows."""
        self._send({"do": "spawn", "name": spec.name, "module": spec.module, "argv": spec.argv, "log": str(log)})

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a process, if it still runs."""
        self._send({"do": "signal", "name": name, "signal": int(number)})

    def close(self) -> None:
        """Ends the fork server; children that are left die with it."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _command(descriptor: int, modules: Sequence[str]) -> list[str]:
        load = [word for module in modules for word in ("--load", module)]
        program = [sys.executable, "-m", "moe.cli.supervise.nursery"]
        return [*program, "--socket", str(descriptor), "--parent", str(os.getpid()), *load]

    def _send(self, message: Mapping[str, object]) -> None:
        self._unsent.append(json.dumps(message).encode())
        self._flush()

    def _flush(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._loop.remove_writer(self._socket.fileno())
        try:
            while self._unsent:
                self._socket.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._flush)
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()  # it is gone; the reader tells so

    def _read(self) -> None:
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.close()
            self._events.lost()
            return
        self._dispatch(json.loads(data))

    def _dispatch(self, message: dict[str, object]) -> None:
        match message:
            case {"event": "loaded"}:
                self._events.loaded()
            case {"event": "broken", "reason": str(reason)}:
                self._events.broken(reason)
            case {"event": "spawned", "name": str(name), "pid": int(pid)}:
                self._events.spawned(name, pid)
            case {"event": "exited", "name": str(name), "code": int(code), "reason": str(reason)}:
                self._events.exited(name, code, reason)
