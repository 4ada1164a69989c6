"""What an expert refuses, drops and joins, as its routers see it."""

import time
from dataclasses import replace

import torch
from moe.wire.port import FailureKind, Incomplete, LayerCall, PartFailure, Target
from moe.wire.settings import WireSettings
from support.layer_calls import toy_call
from support.wire_stage import GROUPS, Attempts, Stage, assert_adds_up, three_groups, wait_until


def only_failure(attempts: Attempts, call: LayerCall, endpoint: str) -> PartFailure:
    """What comes back for part 0, leaving out the start, when the collector may not be subscribed."""
    while True:
        outcome = attempts.router.exchange(call, [Target(0, endpoint)], attempts.aggregator, call.deadline)
        assert isinstance(outcome, Incomplete)
        (failure,) = outcome.failures
        if failure.kind is not FailureKind.NO_COLLECTOR:
            return failure


def spoiled(call: LayerCall, **changes: torch.Tensor) -> LayerCall:
    """The call with its first part changed."""
    return replace(call, parts=(replace(call.parts[0], **changes), *call.parts[1:]))


def test_rows_of_one_layer_from_two_routers_are_one_batch(stage: Stage) -> None:
    one = three_groups(stage)
    other = Attempts(stage.router(), one.endpoints, one.aggregator)
    for attempts in (one, other):
        attempts.run(toy_call(GROUPS))
    expert = stage.experts[0]
    expert.hold()
    calls = [toy_call(GROUPS, seed=1), toy_call(GROUPS, seed=2)]
    rows = sum(len(call.parts[0].token_index) for call in calls)
    running = [attempts.start(call) for attempts, call in zip((one, other), calls, strict=True)]
    wait_until(lambda: expert.wire.stats().queued_rows == rows, "queueing of both")
    seen = len(expert.batches)
    expert.release()
    for future, call in zip(running, calls, strict=True):
        assert_adds_up(future.result(), call)
    assert [len(batch.items) for batch in expert.batches[seen:]] == [2]


def test_the_figures_tell_how_many_dispatches_were_taken_and_how_long_they_waited(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    expert = stage.experts[0]
    before = expert.wire.stats()
    expert.hold()
    call = toy_call(GROUPS, seed=1)
    running = attempts.start(call)
    wait_until(lambda: expert.wire.stats().queued_rows > 0, "queueing")
    queued_at = time.monotonic()
    wait_until(lambda: time.monotonic() - queued_at > 0.05, "a wait that shows")
    expert.release()
    assert_adds_up(running.result(), call)
    after = expert.wire.stats()
    assert after.dispatches == before.dispatches + 1
    assert after.waited_s - before.waited_s > 0.05
    assert after.rows_per_s > 0


def test_layers_are_not_joined(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    expert = stage.experts[0]
    expert.hold()
    calls = [toy_call(GROUPS, layer=layer) for layer in (0, 1)]
    for call in calls:
        attempts.router.exchange(call, [Target(0, expert.endpoint)], attempts.aggregator, time.monotonic())
    rows = sum(len(call.parts[0].token_index) for call in calls)
    wait_until(lambda: expert.wire.stats().queued_rows == rows, "queueing of both")
    seen = len(expert.batches)
    expert.release()
    wait_until(lambda: len(expert.batches) == seen + 2, "both batches")
    assert [batch.layer for batch in expert.batches[seen:]] == [0, 1]


def test_a_full_queue_is_overloaded_and_says_when_to_come_again(stage: Stage) -> None:
    stage.expert(0, 1, max_queued_rows=6)
    attempts = stage.attempts()
    attempts.run(toy_call([[0, 1]]))
    stage.experts[0].hold()
    first = attempts.start(toy_call([[0, 1]]))
    wait_until(lambda: stage.experts[0].wire.stats().queued_rows == 6, "queueing")
    other = Attempts(stage.router(), attempts.endpoints, attempts.aggregator)
    call = toy_call([[0, 1]])
    failure = only_failure(other, call, stage.experts[0].endpoint)
    assert failure.kind is FailureKind.OVERLOADED
    assert failure.retry_after_s > 0
    stage.experts[0].release()
    assert_adds_up(other.run(call), call)
    first.result()


def test_a_receipt_tells_how_many_rows_wait(stage: Stage) -> None:
    stage.expert(0, 1, max_queued_rows=6)
    attempts = stage.attempts()
    attempts.run(toy_call([[0, 1]]))
    expert = stage.experts[0]
    assert attempts.router.queued_rows(expert.endpoint) == 0
    expert.hold()
    attempts.router.exchange(toy_call([[0, 1]]), [Target(0, expert.endpoint)], attempts.aggregator, time.monotonic())
    only_failure(attempts, toy_call([[0, 1]]), expert.endpoint)
    assert attempts.router.queued_rows(expert.endpoint) == 6


def test_expired_work_is_never_computed(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    expert = stage.experts[1]
    expert.hold()
    call = toy_call(GROUPS, seconds=0.3)
    attempts.run(call)
    # The expert reckons the deadline from the time left when the dispatch was written, so its own is a little later.
    wait_until(lambda: time.monotonic() > call.deadline + 2.0, "the expert's deadline")
    expert.release()
    wait_until(lambda: expert.wire.stats().expired == 1, "dropping the expired dispatch")
    assert call.call_id not in {item.call_id for batch in expert.batches for item in batch.items}


def test_an_expert_that_is_not_held_there_is_invalid_and_named(stage: Stage) -> None:
    attempts = three_groups(stage)
    call = toy_call(GROUPS)
    slots = torch.full_like(call.parts[0].slot_experts, 4)
    failure = only_failure(attempts, spoiled(call, slot_experts=slots), stage.experts[0].endpoint)
    assert failure.kind is FailureKind.INVALID
    assert failure.message == "slot_experts: got 4, want experts that are held here in layer 0: 0, 1"


def test_a_malformed_dispatch_leaves_others_alone(stage: Stage) -> None:
    attempts = three_groups(stage)
    call = toy_call(GROUPS)
    bad = spoiled(call, slot_rows=call.parts[0].slot_rows.flip(0))
    assert only_failure(attempts, bad, stage.experts[0].endpoint).kind is FailureKind.INVALID
    good = toy_call(GROUPS)
    assert_adds_up(attempts.run(good), good)


def test_a_computation_that_fails_is_told_and_can_be_tried_again(stage: Stage) -> None:
    attempts = three_groups(stage)
    stage.experts[0].raises = ArithmeticError("expert 1 of layer 0 is broken")
    call = toy_call(GROUPS)
    failure = only_failure(attempts, call, stage.experts[0].endpoint)
    assert (failure.kind, failure.message) == (FailureKind.FAILED, "expert 1 of layer 0 is broken")
    stage.experts[0].raises = None
    assert_adds_up(attempts.run(call), call)


def test_a_dispatch_that_no_message_can_carry_names_the_bound(stage: Stage) -> None:
    attempts = three_groups(stage, settings=WireSettings(max_message_bytes=1200))
    failure = only_failure(attempts, toy_call(GROUPS), stage.experts[0].endpoint)
    assert failure.kind is FailureKind.INVALID
    assert "the bound is 176; send fewer rows" in failure.message
