"""Ours as an engine: `moe up`, or the one process without hops, with a gRPC client in front of it.

    python -m benchmarks.end_to_end.run_moe deployed PACKAGE THREADS [words for `moe up`]
    python -m benchmarks.end_to_end.run_moe one-process PACKAGE THREADS

Resident memory of the serving processes (proportional set size, so that shared pages count once) is told with `ready`.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import grpc
import psutil
from moe.api.inference.v1 import inference_pb2, inference_pb2_grpc
from moe.runtime.server_settings import client_options

from benchmarks.end_to_end.protocol import Request, Talk, run_engine
from benchmarks.memory import pss_bytes
from benchmarks.processes import processes

_SPIN = {"GOMP_SPINCOUNT": "3000", "MALLOC_ARENA_MAX": "1", "HF_HUB_OFFLINE": "1"}
_TIED = (
    "import sys; from moe.runtime.process import die_with_parent; die_with_parent()\n"
    "from moe.cli.main import main; sys.exit(main())\n"
)


class _Client:
    """Generations over one channel, on a loop of their own."""

    def __init__(self, address: str, talk: Talk) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._talk = talk
        self._futures: list[Future[None]] = []
        self._stub: Any = asyncio.run_coroutine_threadsafe(self._open(address), self._loop).result()

    async def _open(self, address: str) -> inference_pb2_grpc.InferenceServiceStub:
        return inference_pb2_grpc.InferenceServiceStub(grpc.aio.insecure_channel(address, options=client_options()))

    def submit(self, request: Request) -> None:
        """Starts a generation and tells its tokens."""
        future = asyncio.run_coroutine_threadsafe(self._generate(request), self._loop)
        future.add_done_callback(_fail_loudly)
        self._futures = [future, *(one for one in self._futures if not one.done())]

    def finish(self) -> None:
        """Waits for what was submitted."""
        wait(self._futures)

    async def _generate(self, request: Request) -> None:
        message = inference_pb2.GenerateRequest(
            prompt=inference_pb2.Prompt(tokens=inference_pb2.TokenIds(ids=request.prompt)),
            sampling=inference_pb2.Sampling(temperature=0.0),
            max_tokens=request.new,
            ignore_eos=True,
        )
        async for answer in self._stub.Generate(message):
            if answer.WhichOneof("kind") == "chunk" and answer.chunk.tokens:
                self._talk.tokens(request.id, [token.id for token in answer.chunk.tokens])


def _fail_loudly(future: "Future[None]") -> None:
    error = future.exception()
    if error is not None:
        print(f"run_moe: {error}", file=sys.stderr)
        os._exit(1)  # the parent sees the end and says so; a lost request must not look like a slow one


def _start(words: Sequence[str], talk: Talk) -> None:
    mode, package, threads, *more = words
    with tempfile.TemporaryDirectory(prefix="moe-bench-") as folder:
        address = f"unix:{folder}/router.sock"
        if mode == "one-process":
            _one_process(package, threads, Path(folder), address, talk)
        else:
            _deployed(package, threads, more, Path(folder), address, talk)


def _one_process(package: str, threads: str, folder: Path, address: str, talk: Talk) -> None:
    words = ["--package", package, "--name", "one", "--discovery", f"file:{folder}/none", "--aggregator", "embedded"]
    with processes(folder) as started:
        words = [*words, "--listen", address, "--threads", threads]
        started.start("one", "benchmarks.end_to_end.one_process", words, {**_SPIN, "OMP_NUM_THREADS": threads})
        started.wait_ready("one", address)
        _serve(address, talk, started.pids)


def _deployed(package: str, threads: str, more: Sequence[str], folder: Path, address: str, talk: Talk) -> None:
    flags = ["--listen", address, "--threads", threads, "--name", f"bench-{os.getpid()}", "--json"]
    log = (folder / "up.log").open("wb")
    up = subprocess.Popen(
        [sys.executable, "-c", _TIED, "up", package, *flags, *more],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )
    assert up.stdout is not None, "opened as a pipe"
    try:
        for line in up.stdout:
            if json.loads(line)["event"] == "up":
                break
        else:
            up.wait()
            raise RuntimeError(f"moe up ended: {(folder / 'up.log').read_text(errors='replace')[-500:]}")
        threading.Thread(target=up.stdout.read, daemon=True).start()
        _serve(address, talk, [child.pid for child in psutil.Process(up.pid).children(recursive=True)])
    finally:
        up.terminate()
        up.wait(60)


def _serve(address: str, talk: Talk, pids: Sequence[int]) -> None:
    client = _Client(address, talk)
    talk.ready(processes=len(pids), resident_mib=round(pss_bytes(pids) / 2**20))
    while (came := talk.take(wait=True)) is not None:
        for request in came:
            client.submit(request)
    client.finish()


if __name__ == "__main__":
    run_engine(_start)
