"""Processes come late, die and come back; a layer call survives, or says what to do again."""

import threading
import time

import pytest
from moe.wire.port import AggregatorLost, FailureKind, Target
from support.layer_calls import toy_call
from support.wire_stage import GROUPS, Attempts, Stage, assert_adds_up, three_groups, wait_until


def kinds(attempts: Attempts) -> set[FailureKind]:
    return {failure.kind for failure in attempts.failures}


def test_an_expert_that_dies_before_it_answers_is_tried_again_after_its_restart(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    expert = stage.experts[1]
    expert.hold()
    call = toy_call(GROUPS)
    running = attempts.start(call)
    wait_until(lambda: expert.wire.stats().queued_rows > 0, "queueing")
    expert.kill()
    expert.open()
    assert_adds_up(running.result(), call)
    assert FailureKind.STREAM_LOST in kinds(attempts)


def test_another_replica_takes_over_from_one_that_died(stage: Stage) -> None:
    first, second = stage.expert(0, 1), stage.expert(0, 1)
    attempts = stage.attempts({0: [first.endpoint, second.endpoint]})
    attempts.run(toy_call([[0, 1]]))
    first.hold()
    second.hold()
    call = toy_call([[0, 1]])
    running = attempts.start(call)
    wait_until(lambda: first.wire.stats().queued_rows > 0, "queueing")
    second.release()
    first.kill()
    assert_adds_up(running.result(), call)


def test_what_a_dead_expert_had_pushed_still_counts(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    stage.experts[2].hold()
    before = [len(expert.batches) for expert in stage.experts]
    call = toy_call(GROUPS)
    targets = [Target(part, expert.endpoint) for part, expert in enumerate(stage.experts)]
    router = stage.routers[0]
    router.exchange(call, targets, attempts.aggregator, time.monotonic() + 0.3)
    wait_until(lambda: all(len(stage.experts[n].batches) > before[n] for n in (0, 1)), "computing two parts")
    router.exchange(call, [], attempts.aggregator, time.monotonic() + 0.3)
    stage.experts[0].kill()
    router.exchange(call, [], attempts.aggregator, time.monotonic() + 0.3)
    stage.experts[2].release()
    outcome = router.exchange(call, [], attempts.aggregator, call.deadline)
    assert_adds_up(outcome, call)


def test_parts_that_a_dead_expert_may_have_taken_along_are_reported(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    stage.experts[2].hold()
    before = [len(expert.batches) for expert in stage.experts]
    call = toy_call(GROUPS)
    targets = [Target(part, expert.endpoint) for part, expert in enumerate(stage.experts)]
    router = stage.routers[0]
    router.exchange(call, targets, attempts.aggregator, time.monotonic() + 0.3)
    wait_until(lambda: len(stage.experts[0].batches) > before[0], "computing a part")
    router.exchange(call, [], attempts.aggregator, time.monotonic() + 0.3)
    stage.experts[0].kill()
    failures = router.exchange(call, [], attempts.aggregator, call.deadline).failures
    assert [(failure.part, failure.kind) for failure in failures] == [(0, FailureKind.STREAM_LOST)]


def test_an_endpoint_where_nobody_listens_is_unreachable(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    stage.experts[1].kill()
    call = toy_call(GROUPS)
    targets = [Target(1, stage.experts[1].endpoint)]
    seen = set()
    while FailureKind.UNREACHABLE not in seen:
        outcome = stage.routers[0].exchange(call, targets, attempts.aggregator, call.deadline)
        seen |= {failure.kind for failure in outcome.failures}
    assert seen <= {FailureKind.UNREACHABLE, FailureKind.STREAM_LOST}


def test_an_endpoint_that_is_not_in_the_directory_is_unreachable(stage: Stage) -> None:
    attempts = three_groups(stage)
    call = toy_call(GROUPS)
    outcome = stage.routers[0].exchange(call, [Target(0, "unix:/nowhere")], attempts.aggregator, call.deadline)
    assert [failure.kind for failure in outcome.failures] == [FailureKind.UNREACHABLE]


def test_an_expert_that_is_removed_loses_what_it_had(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    stage.experts[0].hold()
    call = toy_call(GROUPS)
    router = stage.routers[0]
    router.exchange(call, [Target(0, stage.experts[0].endpoint)], attempts.aggregator, time.monotonic() + 0.1)
    router.set_endpoints([], [each.endpoint for each in stage.aggregators])
    outcome = router.exchange(call, [], attempts.aggregator, call.deadline)
    assert [(f.part, f.kind) for f in outcome.failures] == [(0, FailureKind.STREAM_LOST)]


def test_parts_wait_for_an_aggregator_that_subscribes_later(apart: Stage) -> None:
    attempts = three_groups(apart)
    aggregator = apart.aggregators[0]
    aggregator.set_experts([])
    wait_until(lambda: aggregator.server.sources() == 0, "closing the collect streams")
    call = toy_call(GROUPS)
    running = attempts.start(call)
    wait_until(lambda: FailureKind.NO_COLLECTOR in kinds(attempts), "a receipt that no collector is there")
    aggregator.set_experts([expert.endpoint for expert in apart.experts])
    assert_adds_up(running.result(), call)


@pytest.mark.parametrize("again", ["same id", "new id"])
def test_a_layer_call_is_redone_after_the_aggregator_restarted(apart: Stage, again: str) -> None:
    attempts = three_groups(apart)
    attempts.run(toy_call(GROUPS))
    apart.experts[1].hold()
    call = toy_call(GROUPS)
    running = attempts.start(call)
    wait_until(lambda: apart.experts[1].wire.stats().queued_rows > 0, "queueing")
    apart.aggregators[0].kill()
    assert isinstance(running.result(), AggregatorLost)
    apart.aggregators[0].open()
    apart.experts[1].release()
    if again == "new id":
        call = toy_call(GROUPS)
    outcome = attempts.run(call)
    while isinstance(outcome, AggregatorLost):
        outcome = attempts.run(call)
    assert_adds_up(outcome, call)


def test_an_aggregator_that_is_not_there_is_lost(apart: Stage) -> None:
    attempts = three_groups(apart)
    apart.aggregators[0].kill()
    assert isinstance(attempts.run(toy_call(GROUPS)), AggregatorLost)


def test_an_aggregator_that_nobody_listed_is_lost(stage: Stage) -> None:
    three_groups(stage)
    call = toy_call(GROUPS)
    assert isinstance(stage.routers[0].exchange(call, [], "unix:/nowhere", call.deadline), AggregatorLost)


def test_a_drained_expert_finishes_what_it_accepted(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    attempts.failures.clear()
    expert = stage.experts[1]
    expert.hold()
    call = toy_call(GROUPS)
    running = attempts.start(call)
    wait_until(lambda: expert.wire.stats().queued_rows > 0, "queueing")
    expert.wire.drain()
    expert.release()
    expert.drain()
    assert_adds_up(running.result(), call)


def test_a_draining_expert_takes_nothing_new(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    stage.experts[0].wire.drain()
    call = toy_call(GROUPS)
    targets = [Target(0, stage.experts[0].endpoint)]
    outcome = stage.routers[0].exchange(call, targets, attempts.aggregator, call.deadline)
    assert [failure.kind for failure in outcome.failures] == [FailureKind.DRAINING]


def test_a_router_that_has_not_heard_of_the_drain_is_refused_not_cut_off(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    for module in {type(expert.wire).__module__ for expert in stage.experts}:
        monkeypatch.setattr(f"{module}.DRAIN_QUIET_S", 2.0)
    draining = threading.Thread(target=stage.experts[0].drain)
    draining.start()
    time.sleep(0.2)
    call = toy_call(GROUPS)
    targets = [Target(0, stage.experts[0].endpoint)]
    outcome = stage.routers[0].exchange(call, targets, attempts.aggregator, call.deadline)
    draining.join()
    assert [failure.kind for failure in outcome.failures] == [FailureKind.DRAINING]


def test_a_router_that_closes_frees_what_it_had_queued(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    expert = stage.experts[0]
    expert.hold()
    call = toy_call(GROUPS)
    targets = [Target(0, expert.endpoint)]
    stage.routers[0].exchange(call, targets, attempts.aggregator, time.monotonic())
    wait_until(lambda: expert.wire.stats().queued_rows > 0, "queueing")
    stage.routers[0].close()
    wait_until(lambda: expert.wire.stats().queued_rows == 0, "dropping the closed router's rows")


def test_a_closed_router_says_so(stage: Stage) -> None:
    three_groups(stage)
    stage.routers[0].close()
    assert isinstance(stage.routers[0].exchange(toy_call(GROUPS), [], None, time.monotonic()), AggregatorLost)


def test_a_call_that_is_open_when_its_router_closes_is_lost(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    stage.experts[0].hold()
    running = attempts.start(toy_call(GROUPS))
    wait_until(lambda: stage.experts[0].wire.stats().queued_rows > 0, "queueing")
    stage.routers[0].close()
    assert isinstance(running.result(), AggregatorLost)


def test_an_expert_that_is_back_is_dialled_at_once_when_the_router_is_told(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    expert, router = stage.experts[1], stage.routers[0]
    expert.kill()
    call = toy_call(GROUPS)
    target = [Target(1, expert.endpoint)]
    for _ in range(6):  # each refused attempt lengthens the wait before the next
        router.exchange(call, target, attempts.aggregator, time.monotonic() + 1.0)
    router.abandon(call)
    expert.open()
    router.set_endpoints([e.endpoint for e in stage.experts], [a.endpoint for a in stage.aggregators])
    again = toy_call(GROUPS)
    assert_adds_up(attempts.run(again), again)
    assert FailureKind.UNREACHABLE not in {failure.kind for failure in attempts.failures}
