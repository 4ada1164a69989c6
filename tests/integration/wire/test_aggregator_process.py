"""The aggregator as a process of its own, with real experts and routers around it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moe.aggregator.__main__ import main
from moe.api.control.v1 import control_pb2, control_pb2_grpc
from moe.discovery.directory import ExpertReplica, Snapshot
from moe.discovery.file import write
from moe.runtime.server_settings import client_options
from moe.wire.choice import load
from moe.wire.port import AggregatorLost
from support.layer_calls import toy_call
from support.wire_stage import GROUPS, PATIENCE_S, Attempts, Placement, Stage, assert_adds_up, wait_until

_START_PATIENCE_S = 90.0
"""A Python process that imports torch, on a machine that is busy with others."""


class AggregatorUnderTest:
    """A child process `python -m moe.aggregator`."""

    def __init__(self, directory: Path, stage: Stage) -> None:
        self.endpoint = f"unix:{directory}/agg.sock"
        self.file = directory / "directory.json"
        self._stage = stage
        self._child: subprocess.Popen[bytes] | None = None
        self._channel = grpc.insecure_channel(self.endpoint, client_options())
        self.list_experts()

    def list_experts(self, version: int = 1) -> None:
        replicas = tuple(
            ExpertReplica(f"e-{n}-0", f"e-{n}", tuple(sorted(expert.experts)), expert.endpoint, ready=False)
            for n, expert in enumerate(self._stage.experts)
        )
        write(self.file, Snapshot(version, "toy", replicas))

    def start(self) -> None:
        flags = ["--name", "agg-0", "--listen", self.endpoint, "--discovery", f"file:{self.file}"]
        self._child = subprocess.Popen([sys.executable, "-m", "moe.aggregator", *flags])
        wait_until(self._serving, "the aggregator's readiness", _START_PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    def exit_code(self) -> int:
        """Waits for the end."""
        assert self._child is not None
        return self._child.wait(PATIENCE_S)

    def stats(self) -> control_pb2.AggregatorStats:
        stub = control_pb2_grpc.ControlServiceStub(self._channel)
        return stub.Stats(control_pb2.StatsRequest(), timeout=PATIENCE_S).aggregator

    def describe(self) -> control_pb2.DescribeResponse:
        stub = control_pb2_grpc.ControlServiceStub(self._channel)
        return stub.Describe(control_pb2.DescribeRequest(), timeout=PATIENCE_S)

    def close(self) -> None:
        self._channel.close()
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()

    def _serving(self) -> bool:
        request = health_pb2.HealthCheckRequest(service="moe.aggregator.v1.AggregatorService")
        try:
            answer = health_pb2_grpc.HealthStub(self._channel).Check(request, timeout=1.0, wait_for_ready=True)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
def experts(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(Placement.UNIX, tmp_path)
    for group in GROUPS:
        stage.expert(*group)
    yield stage
    stage.close()


@pytest.fixture
def aggregator(tmp_path: Path, experts: Stage) -> Iterator[AggregatorUnderTest]:
    child = AggregatorUnderTest(tmp_path, experts)
    try:
        child.start()
        yield child
    finally:
        child.close()


@pytest.fixture
def attempts(experts: Stage, aggregator: AggregatorUnderTest) -> Attempts:
    endpoints = {part: [expert.endpoint] for part, expert in enumerate(experts.experts)}
    router = experts.router()
    router.set_endpoints([expert.endpoint for expert in experts.experts], [aggregator.endpoint])
    return Attempts(router, endpoints, aggregator.endpoint)


def test_collects_from_every_expert_listed_and_answers(attempts: Attempts) -> None:
    call = toy_call(GROUPS)
    assert_adds_up(attempts.run(call), call)


def test_tells_what_it_is(aggregator: AggregatorUnderTest) -> None:
    told = aggregator.describe()
    assert (told.role, told.name, told.wire) == (control_pb2.ROLE_AGGREGATOR, "agg-0", load().name)


def test_tells_its_figures(attempts: Attempts, aggregator: AggregatorUnderTest) -> None:
    attempts.run(toy_call(GROUPS))
    stats = aggregator.stats()
    assert (stats.combined, stats.open, stats.sources) == (1, 0, 3)


def test_follows_the_directory(experts: Stage, aggregator: AggregatorUnderTest) -> None:
    wait_until(lambda: aggregator.stats().sources == 3, "three collect streams")
    experts.expert(5)
    aggregator.list_experts(version=2)
    wait_until(lambda: aggregator.stats().sources == 4, "a stream to the expert that came")


def test_a_call_is_redone_after_the_process_was_killed(attempts: Attempts, aggregator: AggregatorUnderTest) -> None:
    attempts.run(toy_call(GROUPS))
    aggregator.signal(signal.SIGKILL)
    aggregator.exit_code()
    assert isinstance(attempts.run(toy_call(GROUPS)), AggregatorLost)
    aggregator.start()
    call = toy_call(GROUPS)
    outcome = attempts.run(call)
    while isinstance(outcome, AggregatorLost):
        outcome = attempts.run(call)
    assert_adds_up(outcome, call)


def test_answers_open_calls_before_it_ends(experts: Stage, attempts: Attempts, aggregator: AggregatorUnderTest) -> None:
    attempts.run(toy_call(GROUPS))
    experts.experts[1].hold()
    call = toy_call(GROUPS)
    running = attempts.start(call)
    wait_until(lambda: aggregator.stats().open == 1, "the open call")
    aggregator.signal(signal.SIGTERM)
    experts.experts[1].release()
    assert_adds_up(running.result(), call)
    assert aggregator.exit_code() == 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [([], "--name"), (["--name", "a", "--listen", "x:1", "--discovery", "file:/tmp/d", "--threads", "0"], "--threads")],
)
def test_bad_settings_are_named_and_end_with_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], complaint: str
) -> None:
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert complaint in error


def test_an_address_that_is_none_is_named_and_ends_with_2() -> None:
    flags = ["--name", "a", "--listen", "nowhere", "--discovery", "file:/tmp/d"]
    done = subprocess.run([sys.executable, "-m", "moe.aggregator", *flags], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"error: cannot listen on 'nowhere'" in done.stderr
