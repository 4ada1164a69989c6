"""Layer calls over real streams add up, also when parts come twice, in another dtype, or never."""

import time

import torch
from moe.wire.port import (
    CallFailed,
    FailureKind,
    Incomplete,
    LayerCall,
    MissingPolicy,
    Target,
)
from support.layer_calls import HIDDEN, expected_rows, toy_call
from support.wire_stage import (
    GROUPS,
    Stage,
    assert_adds_up,
    assert_close,
    combined,
    three_groups,
    wait_until,
)


def test_a_layer_call_adds_up_to_its_weighted_experts(stage: Stage) -> None:
    call = toy_call(GROUPS)
    assert_adds_up(three_groups(stage).run(call), call)


def test_one_layer_call_after_another_adds_up(stage: Stage) -> None:
    attempts = three_groups(stage)
    for number in range(30):
        call = toy_call(GROUPS, seed=number, layer=number % 2, tokens=1 + number % 5)
        assert_adds_up(attempts.run(call), call)


def test_the_same_call_has_the_same_bits_every_time(stage: Stage) -> None:
    attempts = three_groups(stage)
    answers = [combined(attempts.run(toy_call(GROUPS))).rows for _ in range(5)]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_rows_that_no_part_touches_are_zero(stage: Stage) -> None:
    call = toy_call(GROUPS, tokens=4)
    hidden = torch.cat([call.hidden, torch.ones(1, HIDDEN)])
    longer = LayerCall(call.call_id, 0, hidden, call.parts, call.policy, call.deadline)
    assert combined(three_groups(stage).run(longer)).rows[4].tolist() == [0.0] * HIDDEN


def test_partials_travel_in_the_dtype_that_was_asked_for(stage: Stage) -> None:
    attempts = three_groups(stage)
    call = toy_call(GROUPS)
    call = LayerCall(call.call_id, 0, call.hidden, call.parts, call.policy, call.deadline, partial_dtype=torch.bfloat16)
    answer = combined(attempts.run(call)).rows
    assert answer.dtype == torch.float32
    # bfloat16 has 8 bits: each of three partials is off by at most 2^-9 of its size, here below 2.
    assert 1e-5 < float((answer - expected_rows(call)).abs().max()) < 3 * 2 * 2**-9


def test_a_part_sent_twice_counts_once(stage: Stage) -> None:
    attempts = three_groups(stage)
    call = toy_call(GROUPS)
    last = stage.experts[2]
    attempts.run(toy_call(GROUPS))
    last.hold()
    targets = [Target(part, stage.experts[part].endpoint) for part in (0, 0, 1, 1, 2)]
    outcome = stage.routers[0].exchange(call, targets, attempts.aggregator, time.monotonic() + 0.3)
    assert outcome == Incomplete()
    last.release()
    assert_adds_up(stage.routers[0].exchange(call, [], attempts.aggregator, call.deadline), call)


def test_until_passes_without_news(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    stage.experts[0].hold()
    call = toy_call(GROUPS)
    targets = [Target(part, expert.endpoint) for part, expert in enumerate(stage.experts)]
    before = time.monotonic()
    assert stage.routers[0].exchange(call, targets, attempts.aggregator, before + 0.2) == Incomplete()
    assert 0.2 <= time.monotonic() - before < 2.0


def test_wait_answers_at_the_deadline_without_the_part_that_did_not_come(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    stage.experts[1].hold()
    call = toy_call(GROUPS, seconds=0.7)
    outcome = attempts.run(call)
    assert [missing.part for missing in combined(outcome).missing] == [1]
    assert_adds_up(outcome, call, without=(1,))


def test_fail_answers_at_once_without_the_part_that_was_given_up(stage: Stage) -> None:
    attempts = three_groups(stage)
    call = toy_call(GROUPS, policy=MissingPolicy.FAIL)
    router = stage.routers[0]
    attempts.run(toy_call(GROUPS))
    targets = [Target(part, stage.experts[part].endpoint) for part in (0, 2)]
    router.exchange(call, targets, attempts.aggregator, time.monotonic())
    router.give_up(call, 1, "no replica of group 1")
    outcome = router.exchange(call, [], attempts.aggregator, call.deadline)
    assert combined(outcome).missing[0].reason == "no replica of group 1"
    assert_adds_up(outcome, call, without=(1,))


def test_renormalise_scales_the_weights_that_are_left(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    call = toy_call([[0, 1], [2]], tokens=1, topk=3, policy=MissingPolicy.RENORMALISE)
    router = stage.routers[0]
    router.exchange(call, [Target(0, stage.experts[0].endpoint)], attempts.aggregator, time.monotonic())
    router.give_up(call, 1, "no replica")
    answer = combined(router.exchange(call, [], attempts.aggregator, call.deadline))
    have, lack = (float(part.slot_weights.sum()) for part in call.parts)
    assert_close(answer.rows, expected_rows(call, (1,)) * (have + lack) / have)


def test_a_part_with_nan_is_refused_and_can_be_sent_again(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    good = stage.experts[1].compute

    def nan_once(item: object) -> torch.Tensor:
        stage.experts[1].compute = good
        return good(item) * float("nan")

    stage.experts[1].compute = nan_once
    attempts.failures.clear()
    call = toy_call(GROUPS)
    assert_adds_up(attempts.run(call), call)
    assert [(f.part, f.kind) for f in attempts.failures] == [(1, FailureKind.REFUSED)]


def test_an_abandoned_call_leaves_nothing_behind(apart: Stage) -> None:
    attempts = three_groups(apart)
    attempts.run(toy_call(GROUPS))
    call = toy_call(GROUPS)
    apart.routers[0].exchange(call, [], attempts.aggregator, time.monotonic())
    apart.routers[0].abandon(call)
    wait_until(lambda: apart.aggregators[0].server.stats().open == 0, "closing the abandoned call")
    assert apart.aggregators[0].server.stats().combined == 1


def test_a_plan_that_makes_no_sense_fails_the_call(stage: Stage) -> None:
    attempts = three_groups(stage)
    call = toy_call(GROUPS)
    part = call.parts[0]
    twisted = type(part)(0, part.token_index.flip(0), part.slot_rows, part.slot_experts, part.slot_weights)
    call = LayerCall(call.call_id, 0, call.hidden, (twisted, *call.parts[1:]), call.policy, call.deadline)
    outcome = stage.routers[0].exchange(call, [], attempts.aggregator, call.deadline)
    assert isinstance(outcome, CallFailed)
    assert "token_index: must rise strictly" in outcome.message


def test_a_call_without_parts_is_answered_with_zeros(stage: Stage) -> None:
    attempts = three_groups(stage)
    call = LayerCall(1, 0, torch.ones(2, HIDDEN), (), MissingPolicy.WAIT, time.monotonic() + 20.0)
    assert combined(attempts.run(call)).rows.tolist() == [[0.0] * HIDDEN] * 2
