"""An expert process that hangs without dying: another replica answers, and no request waits for a time-out."""

import os
import signal
from collections.abc import Iterator

import pytest
from moe.api.control.v1 import control_pb2, control_pb2_grpc
from support.moe_up import MoeUp
from support.streams import Clients, request

PROMPTS = [[5], [7, 9, 11], list(range(3, 20)), [99, 98, 97, 96]]
REQUESTS = [request(prompt, 400) for prompt in PROMPTS]
LAYER_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def double(bring_up, tiny) -> tuple[MoeUp, Clients]:
    """Two replicas of each group."""
    return bring_up(
        tiny, "--groups", "2", "--replicas", "2", "--deterministic", "--layer-timeout", str(LAYER_TIMEOUT_S)
    )


@pytest.fixture
def hang(double: tuple[MoeUp, Clients]) -> Iterator[object]:
    """Stops a process; lets it go on after the test."""
    stopped: list[int] = []

    def stop(name: str) -> None:
        stopped.append(double[0].pid(name))
        os.kill(stopped[-1], signal.SIGSTOP)

    yield stop
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_a_hung_expert_costs_moments_and_no_token(double, hang) -> None:
    up, clients = double
    undisturbed = [answer.tokens for answer in clients.ask_all(REQUESTS)]
    name = next(e["process"] for e in up.events if e["event"] == "ready" and e["process"].startswith("tiny"))
    answers = clients.ask_all(REQUESTS, meanwhile=lambda: hang(name), after=10)
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)
    stats = control_pb2_grpc.ControlServiceStub(clients.channel).Stats(control_pb2.StatsRequest(), timeout=30)
    assert stats.router.hedged_parts > 0
