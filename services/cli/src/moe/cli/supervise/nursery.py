"""The fork server: imports the parts once, before any thread or gRPC exists, then forks a child for each process.

Forked children share the imported libraries' pages and start in milliseconds instead of seconds. It is started as
`python -m moe.cli.supervise.nursery` and speaks JSON, one object per message, over a SOCK_SEQPACKET socket:

    in   {"do": "spawn", "name", "module", "argv", "log"}    {"do": "signal", "name", "signal"}
    out  {"event": "loaded"}    {"event": "broken", "reason"}    {"event": "spawned", "name", "pid"}
         {"event": "exited", "name", "code", "reason"}           code as in subprocess: minus the signal's number

It dies with the supervisor and its children with it (PR_SET_PDEATHSIG), so that a kill -9 leaves no orphan.
"""

import argparse
import faulthandler
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from moe.runtime.process import die_with_parent, settle_memory

MESSAGE_BYTES = 1 << 18
"""Longest message in bytes, in either direction."""

_COMM_LENGTH = 15


class _Nursery:
    """The loop of the fork server. children: names by pid, as long as the child is not reaped."""

    def __init__(self, supervisor: socket.socket) -> None:
        self._supervisor = supervisor
        self._children: dict[int, str] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the supervisor closes its end."""
        while True:
            readable, _, _ = select.select([self._supervisor.fileno(), self._wake_read], [], [])
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._supervisor.fileno() in readable:
                message = self._supervisor.recv(MESSAGE_BYTES)
                if not message:
                    return
                self._obey(json.loads(message))

    def tell(self, **message: object) -> None:
        self._supervisor.send(json.dumps(message).encode())

    def _obey(self, message: dict[str, object]) -> None:
        name = str(message["name"])
        if message["do"] == "spawn":
            argv = message["argv"]
            assert isinstance(argv, list)
            self._spawn(name, str(message["module"]), [str(word) for word in argv], str(message["log"]))
        else:
            for pid in [pid for pid, child in self._children.items() if child == name]:
                os.kill(pid, int(str(message["signal"])))

    def _spawn(self, name: str, module: str, argv: list[str], log: str) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.tell(event="exited", name=name, code=1, reason=f"fork failed: {error.strerror}")
            return
        if pid == 0:
            self._become(parent, name, module, argv, log)
        self._children[pid] = name
        self.tell(event="spawned", name=name, pid=pid)

    def _become(self, parent: int, name: str, module: str, argv: list[str], log: str) -> NoReturn:
        code = 1
        try:
            die_with_parent(parent)
            self._shed()
            _redirect(log)
            Path("/proc/self/comm").write_text(name[-_COMM_LENGTH:])
            code = _run(module, argv)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _shed(self) -> None:
        """Gives back what belongs to the fork server and not to a child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._supervisor.close()

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.tell(event="exited", name=self._children.pop(pid), code=os.waitstatus_to_exitcode(status), reason="")


def _redirect(log: str) -> None:
    """Standard input from nowhere, both outputs appended to the log (readable by its owner only)."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    faulthandler.enable()


def _run(module: str, argv: list[str]) -> int:
    """The exit code of the module's `main(argv)`."""
    sys.argv = [module, *argv]
    try:
        return int(importlib.import_module(module).main(argv))
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            print(exit_.code, file=sys.stderr)
            return 1
        return exit_.code or 0
    except KeyboardInterrupt:
        return 130


def _load(modules: Sequence[str]) -> str:
    """Imports the parts; returns why that can't be forked from, or nothing."""
    _spare_gpu_bindings()
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            traceback.print_exc()
            return f"importing {module} failed: {type(error).__name__}: {error}"
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        return (
            f"importing {', '.join(modules)} started {threads - 1} threads, and a process with threads can't be forked"
        )
    settle_memory()
    return ""


def _spare_gpu_bindings() -> None:
    """On a machine without a GPU, has torch go without NVIDIA's Python bindings, which are optional to it: 8 MiB in
    each process that nothing would use."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        sys.modules["cuda"] = None  # type: ignore[assignment]  # how Python marks a module that is not to be had


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the fork server on an inherited socket."""
    parser = argparse.ArgumentParser(prog="moe.cli.supervise.nursery", description="The fork server behind moe up.")
    parser.add_argument("--socket", type=int, required=True, help="inherited SOCK_SEQPACKET descriptor")
    parser.add_argument("--parent", type=int, required=True, help="pid of the supervisor, with which it dies")
    parser.add_argument("--load", action="append", default=[], help="module to import before forking")
    options = parser.parse_args(argv)
    die_with_parent(options.parent)
    nursery = _Nursery(socket.socket(fileno=options.socket))
    reason = _load(options.load)
    if reason:
        nursery.tell(event="broken", reason=reason)
        return 1
    nursery.tell(event="loaded")
    nursery.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
