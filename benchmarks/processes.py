"""Processes that a benchmark starts: each in the log of its own, ended with the benchmark, however that ends."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moe.runtime.server_settings import client_options

from benchmarks.places import CHECKOUT

QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MALLOC_ARENA_MAX": "1", "HF_HUB_OFFLINE": "1"}
_TIED = (
    "import runpy, sys; from moe.runtime.process import die_with_parent; die_with_parent()\n"
    "sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
)


class Processes:
    """Started by name; `close` ends all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        """Of all that were started."""
        return [process.pid for process in self._running.values()]

    def start(self, name: str, module: str, words: Sequence[str], environment: Mapping[str, str] = QUIET) -> int:
        """Starts `python -m module`, which dies with this process; its output goes to NAME.log in the folder.

        Returns its process id.
        """
        path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-c", _TIED, module, *words],
                env={**os.environ, **environment, "PYTHONPATH": path},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self._running[name].pid

    def wait_ready(self, name: str, endpoint: str, patience_s: float = 300.0) -> None:
        """Until its health says SERVING. Raises RuntimeError with the end of its log when that can't be."""
        until = time.monotonic() + patience_s
        while not _serving(endpoint):
            if self._running[name].poll() is not None or time.monotonic() > until:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-1500:]
                raise RuntimeError(f"{name} is not ready; the end of its log:\n{log}")
            time.sleep(0.05)

    def close(self) -> None:
        """Ends all."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """For the length of a block."""
    made = Processes(folder)
    try:
        yield made
    finally:
        made.close()


def _serving(endpoint: str) -> bool:
    with grpc.insecure_channel(endpoint, options=client_options()) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2.0)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
