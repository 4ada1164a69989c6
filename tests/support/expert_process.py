"""A real expert process, and a router's and an aggregator's stream to it, over plain gRPC stubs."""

import contextlib
import itertools
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moe.api.control.v1 import control_pb2, control_pb2_grpc
from moe.api.expert.v1 import expert_pb2, expert_pb2_grpc
from moe.runtime.server_settings import client_options
from moe.runtime.tensors import from_message, to_message
from torch import Tensor

WAIT_S = 60.0
AGGREGATOR = "agg-0"


def command(package: Path, listen: str, *more: str, experts: str = "0,1,2,3") -> list[str]:
    """The command line of an expert process."""
    names = ["--name", "tiny-000-0", "--group", "tiny-000"]
    place = ["--package", str(package), "--experts", experts, "--listen", listen]
    return [sys.executable, "-W", "error", "-m", "moe.expert", *place, *names, *more]


def run_to_end(package: Path, listen: str, *more: str, experts: str = "0,1,2,3") -> tuple[int, str]:
    """Exit code and stderr of a process that ends by itself."""
    done = subprocess.run(
        command(package, listen, *more, experts=experts), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    return done.returncode, done.stderr


@dataclass
class ExpertProcess:
    """A running process. log: where its stderr goes; metrics_page: its address, set by who asked for one."""

    process: subprocess.Popen[bytes]
    target: str
    log: Path
    metrics_page: str = ""
    channel: grpc.Channel = field(init=False)

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(self.target, options=client_options())

    def wait_ready(self) -> None:
        """Returns when health says SERVING; fails with the log when the process ends before."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(grpc.RpcError):
                answer = stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=1)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            time.sleep(0.02)
        raise AssertionError(f"not ready within {WAIT_S} s: {self.log.read_text()}")

    def stats(self) -> control_pb2.StatsResponse:
        return control_pb2_grpc.ControlServiceStub(self.channel).Stats(control_pb2.StatsRequest(), timeout=WAIT_S)

    def describe(self) -> control_pb2.DescribeResponse:
        return control_pb2_grpc.ControlServiceStub(self.channel).Describe(control_pb2.DescribeRequest(), timeout=WAIT_S)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        return self.process.wait(WAIT_S)


@contextlib.contextmanager
def expert_process(package: Path, directory: Path, *more: str, experts: str = "0,1,2,3") -> Iterator[ExpertProcess]:
    """Starts a process on a unix socket in `directory`; kills it at the end if it still runs."""
    target, log = f"unix:{directory}/expert.sock", directory / "expert.log"
    with log.open("wb") as stderr:
        started = subprocess.Popen(
            command(package, target, *more, experts=experts),
            stderr=stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    expert = ExpertProcess(started, target, log)
    try:
        yield expert
    finally:
        expert.channel.close()
        if started.poll() is None:
            started.kill()
        started.wait(WAIT_S)


class Stream:
    """One open bidirectional stream: `send`, then `next`."""

    def __init__(self, method: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._responses = method(iter(self._requests.get, None), wait_for_ready=True)

    def send(self, request: Any) -> None:
        self._requests.put(request)

    def next(self) -> Any:
        """The next response. Raises StopIteration at the stream's end, grpc.RpcError when it breaks."""
        return next(self._responses)

    def close(self) -> None:
        self._requests.put(None)
        self._responses.cancel()


@contextlib.contextmanager
def collect(expert: ExpertProcess, aggregator: str = AGGREGATOR) -> Iterator[Stream]:
    """An aggregator's stream that is subscribed."""
    stream = Stream(expert_pb2_grpc.ExpertServiceStub(expert.channel).Collect)
    stream.send(expert_pb2.CollectRequest(aggregator=aggregator))
    assert stream.next().HasField("subscribed")
    try:
        yield stream
    finally:
        stream.close()


@contextlib.contextmanager
def dispatch(expert: ExpertProcess) -> Iterator[Stream]:
    """A router's stream that is open."""
    stream = Stream(expert_pb2_grpc.ExpertServiceStub(expert.channel).Dispatch)
    assert stream.next().HasField("opened")
    try:
        yield stream
    finally:
        stream.close()


_calls = itertools.count(1)


def request(
    rows: Tensor, slots: list[tuple[int, int, float]], *, layer: int = 0, aggregator: str = AGGREGATOR
) -> expert_pb2.DispatchRequest:
    """A dispatch with a call id of its own. slots: (row, expert, weight), rows not decreasing."""
    return expert_pb2.DispatchRequest(
        call_id=next(_calls),
        layer=layer,
        part=0,
        aggregator=aggregator,
        timeout_us=int(WAIT_S * 1e6),
        rows=to_message(rows),
        slot_rows=to_message(torch.tensor([row for row, _, _ in slots], dtype=torch.int32)),
        slot_experts=to_message(torch.tensor([expert for _, expert, _ in slots], dtype=torch.int32)),
        slot_weights=to_message(torch.tensor([weight for _, _, weight in slots])),
    )


def partial_rows(response: expert_pb2.CollectResponse) -> Tensor:
    """The rows of a partial."""
    return from_message(response.partial.rows, field="rows")
