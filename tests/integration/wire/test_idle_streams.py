"""Between layer calls no thread of a call is in the wire: it still gives signs of life, makes room and dials again."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from moe.wire.port import FailureKind, Target
from moe.wire.settings import WireSettings
from support.layer_calls import toy_call
from support.tap import Tap
from support.wire_stage import (
    IMPLEMENTATIONS,
    Attempts,
    Implementation,
    Placement,
    Stage,
    ToyExpert,
    assert_adds_up,
    wait_until,
)

GROUPS = [[0, 1]]
WATCHFUL = WireSettings(keepalive_s=1.0, keepalive_timeout_s=1.0, open_timeout_s=1.0)
"""Asks for signs of life as often as gRPC's core can be made to ask, a second."""
ROUNDS = 4
"""Of signs of life, more than the two that a client may send without data unless it is told otherwise."""
_EMBEDDED = [each for each in IMPLEMENTATIONS if each.plays(Placement.EMBEDDED)]


class Idle:
    """An expert behind a tap, and a router with the combiner inside that has used both its streams once."""

    def __init__(self, implementation: Implementation, folder: Path) -> None:
        self.stage = Stage(Placement.EMBEDDED, folder, implementation)
        self.expert: ToyExpert = self.stage.expert(0, 1, settings=WATCHFUL)
        self.tap = Tap(folder / "tap.sock", self.expert.endpoint)
        router = self.stage.router(settings=WATCHFUL)
        router.set_endpoints([self.tap.endpoint], [])
        self.attempts = Attempts(router, {0: [self.tap.endpoint]}, None)
        self.call()
        self.attempts.failures.clear()

    def call(self) -> None:
        """A layer call whose answer is right."""
        call = toy_call(GROUPS)
        assert_adds_up(self.attempts.run(call), call)

    def close(self) -> None:
        self.stage.close()
        self.tap.close()


@pytest.fixture(params=_EMBEDDED, ids=lambda each: each.name)
def idle(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Idle]:
    made = Idle(request.param, tmp_path)
    yield made
    made.close()


def test_both_ends_give_signs_of_life_between_calls_and_the_streams_stay(idle: Idle) -> None:
    made = idle.tap.made
    wait_until(lambda: idle.tap.rounds() >= ROUNDS, f"{ROUNDS} signs of life of either end")
    idle.call()
    assert (idle.tap.made, idle.tap.hung_up, idle.attempts.failures) == (made, 0, [])


def test_a_peer_that_vanished_is_noticed_between_calls_and_dialled_again_when_it_is_back(idle: Idle) -> None:
    made = idle.tap.made
    idle.tap.fall_silent()
    wait_until(lambda: idle.tap.hung_up >= made, "hanging up on a peer that gives no sign of life")
    wait_until(lambda: idle.tap.made > made, "dialling again")
    idle.tap.heal()
    # No call runs: the streams that open are those of who dials between calls.
    wait_until(lambda: idle.tap.passing == made and idle.tap.rounds() >= 1, "signs of life on all streams anew")
    idle.call()
    assert idle.attempts.failures == []


def test_a_call_that_waits_for_a_peer_that_vanished_is_told_that_its_stream_is_lost(idle: Idle) -> None:
    idle.expert.hold()
    running = idle.attempts.start(toy_call(GROUPS, seconds=60.0))
    wait_until(lambda: idle.expert.wire.stats().queued_rows > 0, "queueing")
    idle.tap.fall_silent()
    wait_until(lambda: bool(idle.attempts.failures), "a failure of the part")
    assert idle.attempts.failures[0].kind is FailureKind.STREAM_LOST
    idle.tap.heal()
    idle.expert.release()
    call = toy_call(GROUPS)
    running.result()
    assert_adds_up(idle.attempts.run(call), call)


def test_an_expert_that_computes_something_else_reads_more_than_a_window(idle: Idle) -> None:
    """64 MiB may be on their way unread; here 90 MiB are refused for want of room in the queue, so they were read."""
    idle.expert.hold()
    router, target = idle.attempts.router, [Target(0, idle.tap.endpoint)]
    call = toy_call(GROUPS, tokens=16384, seconds=120.0)
    for number in (1, 2):
        router.exchange(replace(call, call_id=call.call_id + (number << 40)), target, None, time.monotonic())
    wait_until(lambda: idle.expert.wire.stats().queued_rows == 32768, "filling the queue")
    for _ in range(100):
        outcome = router.exchange(call, target, None, call.deadline)
        assert [failure.kind for failure in outcome.failures] == [FailureKind.OVERLOADED]
