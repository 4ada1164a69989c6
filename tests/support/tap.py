"""A piece of network between a dialler and a listener on unix sockets, that counts HTTP/2 pings and can fall silent.

Silent as a machine that vanished is: connections stay open and new ones are accepted, but nothing that is said on them
gets to the other end any more. It is noticed all the same when the dialler hangs up.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES, _PING, _ACK = 9, 6, 1


class PingCounter:
    """Counts the answers to pings in one direction of a connection. dialler: whose direction it is."""

    def __init__(self, *, dialler: bool) -> None:
        self.answers = 0
        self._skip = len(_PREFACE) if dialler else 0
        self._head = b""

    def take(self, data: bytes) -> None:
        """The next bytes of the direction."""
        while data:
            skipped = min(self._skip, len(data))
            data, self._skip = data[skipped:], self._skip - skipped
            missing = _HEAD_BYTES - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if len(self._head) == _HEAD_BYTES:
                kind, flags = self._head[3], self._head[4]
                self.answers += kind == _PING and bool(flags & _ACK)
                self._skip, self._head = int.from_bytes(self._head[:3], "big"), b""


@dataclass
class _Connection:
    """dialled: by whom it was made; through: to the listener, None while the network is silent. silent: for good."""

    dialled: socket.socket
    through: socket.socket | None
    from_dialler: PingCounter = field(default_factory=lambda: PingCounter(dialler=True))
    from_listener: PingCounter = field(default_factory=lambda: PingCounter(dialler=False))
    silent: bool = False
    hung_up: bool = False


class Tap:
    """Listens at `path` and hands on to `target` (`unix:/path`) what comes."""

    def __init__(self, path: Path, target: str) -> None:
        self.endpoint = f"unix:{path}"
        self._target = target.removeprefix("unix:")
        self._silent = False
        self._made: list[_Connection] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._start(self._accept)

    @property
    def made(self) -> int:
        """Connections that were dialled so far."""
        return len(self._made)

    @property
    def hung_up(self) -> int:
        """How many of them the dialler has ended."""
        return sum(each.hung_up for each in self._made)

    @property
    def passing(self) -> int:
        """Connections that are open and carry what is said on them."""
        return len(self._passing())

    def rounds(self) -> int:
        """Pings that both ends have answered, on the passing connection that had fewest."""
        answers = [min(each.from_listener.answers, each.from_dialler.answers) for each in self._passing()]
        return min(answers, default=0)

    def _passing(self) -> list[_Connection]:
        return [each for each in self._made if not each.hung_up and not each.silent]

    def fall_silent(self) -> None:
        """From now on nothing passes, on connections that are there and on new ones."""
        self._silent = True
        for each in self._made:
            each.silent = True

    def heal(self) -> None:
        """New connections pass; those of the silence stay silent."""
        self._silent = False

    def close(self) -> None:
        """Ends all."""
        _end(self._listener)
        self._threads[0].join()
        ends = [end for each in self._made for end in (each.dialled, each.through) if end]
        for end in ends:
            _end(end)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *ends):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                dialled, _ = self._listener.accept()
            except OSError:
                return
            self._connect(dialled)

    def _connect(self, dialled: socket.socket) -> None:
        through = None
        if not self._silent:
            through = socket.socket(socket.AF_UNIX)
            try:
                through.connect(self._target)
            except OSError:
                through.close()
                dialled.close()
                return
        made = _Connection(dialled, through, silent=through is None)
        self._made.append(made)
        self._start(self._pump, made, dialled, through, made.from_dialler)
        if through:
            self._start(self._pump, made, through, dialled, made.from_listener)

    def _pump(self, made: _Connection, source: socket.socket, sink: socket.socket | None, pings: PingCounter) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not made.silent and sink:
                    pings.take(data)
                    sink.sendall(data)
        if source is made.dialled:
            made.hung_up = True
        if sink and not (made.silent and sink is made.dialled):
            _end(sink)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()


def _end(end: socket.socket) -> None:
    """Wakes whoever reads from it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
