"""The combiner's story: parts come in any order, twice, late, broken or not at all, and each has one meaning."""

from collections.abc import Sequence

import pytest
import torch
from moe.aggregator.combiner import Combiner
from moe.wire.combining import (
    Answered,
    CallKey,
    CallPlan,
    CallWasRejected,
    CombineEvent,
    PartWasRefused,
    PlannedPart,
    SourceWasLost,
)
from moe.wire.port import MissingPart, MissingPolicy
from moe.wire.settings import CombinerLimits
from support.layer_plans import KEY, partial, three_part_plan

WAIT, RENORMALISE, FAIL = MissingPolicy.WAIT, MissingPolicy.RENORMALISE, MissingPolicy.FAIL
PARTS = {0: 1.0, 1: 2.0, 2: 4.0}
WHOLE = [[5.0, 5.0], [3.0, 3.0], [6.0, 6.0]]
LATE = "did not arrive before the deadline"


def opened(policy: MissingPolicy = WAIT, limits: CombinerLimits | None = None) -> Combiner:
    combiner = Combiner(limits)
    assert combiner.plan("router", three_part_plan(policy), 0.0) == []
    return combiner


def deliver(combiner: Combiner, parts: Sequence[int], now: float = 1.0) -> list[CombineEvent]:
    return [event for part in parts for event in combiner.part(KEY, part, partial(PARTS[part]), now)]


def only(events: Sequence[CombineEvent]) -> CombineEvent:
    assert len(events) == 1
    return events[0]


def answer(events: Sequence[CombineEvent]) -> Answered:
    event = only(events)
    assert isinstance(event, Answered)
    return event


@pytest.mark.parametrize("policy", MissingPolicy)
def test_answers_with_the_sum_when_every_part_is_in(policy: MissingPolicy) -> None:
    combiner = opened(policy)
    assert answer(deliver(combiner, [2, 0, 1])).rows.tolist() == WHOLE


def test_an_answer_names_its_owner_call_and_nothing_missing() -> None:
    event = answer(deliver(opened(), [0, 1, 2]))
    assert (event.owner, event.key, event.missing) == ("router", KEY, ())


def test_takes_parts_that_come_before_their_plan() -> None:
    combiner = Combiner()
    deliver(combiner, [0, 2])
    assert combiner.plan("router", three_part_plan(), 2.0) == []
    assert answer(deliver(combiner, [1])).rows.tolist() == WHOLE


def test_answers_at_once_when_the_plan_comes_last() -> None:
    combiner = Combiner()
    deliver(combiner, [0, 1, 2])
    assert answer(combiner.plan("router", three_part_plan(), 2.0)).rows.tolist() == WHOLE


def test_a_plan_without_parts_is_answered_with_zeros() -> None:
    plan = CallPlan(KEY, 2, 2, torch.float32, WAIT, None, ())
    assert answer(Combiner().plan("router", plan, 0.0)).rows.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_the_answer_has_the_dtype_of_the_plan_and_is_summed_in_float32() -> None:
    combiner = Combiner()
    combiner.plan("router", three_part_plan(dtype=torch.bfloat16), 0.0)
    # In bfloat16 256 + 1 is 256 again (8 bits of significand): only a float32 sum of 256 + 1 + 1 gets to 258.
    parts = [PlannedPart(p, torch.tensor([0], dtype=torch.int32)) for p in range(3)]
    plan = CallPlan(CallKey(2, 0), 1, 1, torch.bfloat16, WAIT, None, tuple(parts))
    combiner.plan("router", plan, 0.0)
    events = [
        event
        for part, value in enumerate([256.0, 1.0, 1.0])
        for event in combiner.part(plan.key, part, torch.tensor([[value]], dtype=torch.bfloat16), 0.0)
    ]
    rows = answer(events).rows
    assert (rows.dtype, rows.item()) == (torch.bfloat16, 258.0)


@pytest.mark.parametrize("when", ["open", "closed", "early"])
def test_a_second_arrival_is_dropped_and_counted(when: str) -> None:
    combiner = Combiner() if when == "early" else opened()
    deliver(combiner, [0, 1, 2] if when == "closed" else [0])
    assert combiner.part(KEY, 0, partial(1000.0), 1.0) == []
    assert combiner.stats().duplicates == 1


def test_the_first_arrival_of_a_part_wins() -> None:
    combiner = opened()
    deliver(combiner, [0])
    combiner.part(KEY, 0, partial(1000.0), 1.0)
    assert answer(deliver(combiner, [1, 2])).rows.tolist() == WHOLE


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (partial(float("nan")), "NaN"),
        (partial(float("inf")), "infinity"),
        (partial(float("-inf")), "infinity"),
        (partial(3e38), "would overflow"),
        (partial(-3e38), "would overflow"),
        (torch.zeros(3, 2), r"shape: got [3, 2], want [2, 2]"),
        (torch.zeros(2, 3), r"shape: got [2, 3], want [2, 2]"),
        (torch.zeros(4), r"shape: got [4], want [2, 2]"),
        (torch.zeros(2, 2, dtype=torch.int32), "dtype: got int32"),
    ],
)
def test_refuses_a_part_that_can_not_be_added(rows: torch.Tensor, reason: str) -> None:
    event = only(opened().part(KEY, 1, rows, 1.0))
    assert isinstance(event, PartWasRefused)
    assert event.part == 1
    assert reason in event.reason


def test_a_single_nan_in_one_row_is_enough_to_refuse() -> None:
    rows = partial(1.0)
    rows[1, 1] = float("nan")
    assert isinstance(only(opened().part(KEY, 0, rows, 1.0)), PartWasRefused)


def test_refuses_a_part_that_is_not_in_the_plan() -> None:
    event = only(opened().part(KEY, 7, partial(1.0), 1.0))
    assert isinstance(event, PartWasRefused)
    assert "part 7 is not in the plan, which has [0, 1, 2]" in event.reason


def test_a_good_part_after_a_refused_one_completes_the_call() -> None:
    combiner = opened()
    combiner.part(KEY, 1, partial(float("nan")), 1.0)
    assert answer(deliver(combiner, [0, 1, 2])).rows.tolist() == WHOLE


def test_an_early_part_that_is_broken_is_refused_when_its_plan_comes() -> None:
    combiner = Combiner()
    combiner.part(KEY, 1, partial(float("nan")), 0.0)
    event = only(combiner.plan("router", three_part_plan(), 1.0))
    assert isinstance(event, PartWasRefused)
    assert event.part == 1


def test_a_part_that_can_not_be_read_is_refused() -> None:
    event = only(opened().broken_part(KEY, 1, "data: got 3 bytes", 1.0))
    assert event == PartWasRefused("router", KEY, 1, "data: got 3 bytes")


def test_wait_ignores_a_part_given_up_until_the_deadline() -> None:
    combiner = opened(WAIT)
    deliver(combiner, [0, 2])
    combiner.give_up(KEY, 1, "no replica of demo-001", 5.0)
    assert combiner.expire(99.9) == []
    assert answer(combiner.expire(100.0)).missing == (MissingPart(1, "no replica of demo-001", 2),)


def test_wait_takes_a_part_that_comes_after_it_was_given_up() -> None:
    combiner = opened(WAIT)
    combiner.give_up(KEY, 1, "no replica", 5.0)
    assert answer(deliver(combiner, [0, 1, 2])).missing == ()


@pytest.mark.parametrize("policy", [WAIT, FAIL])
def test_rows_of_the_other_parts_stay_as_they_are(policy: MissingPolicy) -> None:
    combiner = opened(policy)
    deliver(combiner, [0, 2])
    assert answer(combiner.expire(100.0)).rows.tolist() == [[5.0, 5.0], [1.0, 1.0], [4.0, 4.0]]


@pytest.mark.parametrize("policy", [RENORMALISE, FAIL])
def test_answers_as_soon_as_what_is_missing_is_given_up(policy: MissingPolicy) -> None:
    combiner = opened(policy)
    deliver(combiner, [0, 2])
    event = answer(combiner.give_up(KEY, 1, "no replica", 5.0))
    assert event.missing == (MissingPart(1, "no replica", 2),)


@pytest.mark.parametrize("policy", [RENORMALISE, FAIL])
def test_waits_for_the_others_when_one_part_is_given_up(policy: MissingPolicy) -> None:
    combiner = opened(policy)
    deliver(combiner, [0])
    assert combiner.give_up(KEY, 1, "no replica", 5.0) == []
    assert [m.part for m in answer(deliver(combiner, [2])).missing] == [1]


def test_renormalise_scales_each_row_up_to_its_full_weight() -> None:
    combiner = opened(RENORMALISE)
    deliver(combiner, [0, 2])
    # Tokens 1 and 2 lost half of their weight: what is left of them counts twice.
    assert answer(combiner.expire(100.0)).rows.tolist() == [[5.0, 5.0], [2.0, 2.0], [8.0, 8.0]]


def test_renormalise_leaves_a_row_zero_when_nothing_of_it_came() -> None:
    combiner = opened(RENORMALISE)
    deliver(combiner, [0])
    assert answer(combiner.expire(100.0)).rows[2].tolist() == [0.0, 0.0]


def test_at_the_deadline_each_missing_part_has_its_own_reason() -> None:
    combiner = opened()
    combiner.part(KEY, 0, partial(float("nan")), 1.0)
    combiner.give_up(KEY, 2, "no replica", 1.0)
    reasons = [m.reason for m in answer(combiner.expire(100.0)).missing]
    assert reasons == ["refused: values: NaN among them", LATE, "no replica"]


def test_giving_up_a_part_that_is_in_changes_nothing() -> None:
    combiner = opened(FAIL)
    deliver(combiner, [0, 1])
    combiner.give_up(KEY, 1, "no replica", 1.0)
    assert answer(deliver(combiner, [2])).missing == ()


def test_next_deadline_is_the_earliest_of_the_open_calls() -> None:
    combiner = opened()
    combiner.plan("router", three_part_plan(key=CallKey(9, 9), deadline=50.0), 0.0)
    assert combiner.next_deadline() == 50.0


def test_without_open_calls_there_is_no_deadline() -> None:
    combiner = opened()
    deliver(combiner, [0, 1, 2])
    assert combiner.next_deadline() is None


def test_the_same_plan_again_is_ignored() -> None:
    combiner = opened()
    deliver(combiner, [0, 1])
    assert combiner.plan("router", three_part_plan(), 2.0) == []
    assert answer(deliver(combiner, [2])).rows.tolist() == WHOLE


def test_the_answer_goes_to_the_owner_that_told_the_plan_last() -> None:
    combiner = opened()
    combiner.plan("router again", three_part_plan(), 2.0)
    combiner.forget_owner("router", 3.0)
    assert answer(deliver(combiner, [0, 1, 2])).owner == "router again"


def test_another_plan_for_an_open_call_is_rejected() -> None:
    event = only(opened().plan("router", three_part_plan(tokens=4), 2.0))
    assert isinstance(event, CallWasRejected)
    assert not event.deadline


def test_a_plan_sent_again_after_its_answer_is_done_again() -> None:
    combiner = opened()
    deliver(combiner, [0, 1, 2])
    combiner.plan("router", three_part_plan(), 2.0)
    assert answer(deliver(combiner, [2, 1, 0])).rows.tolist() == WHOLE


def test_parts_that_came_between_an_answer_and_its_redo_are_asked_for_again() -> None:
    combiner = opened()
    deliver(combiner, [0, 1, 2])
    deliver(combiner, [1])
    event = only(combiner.plan("router", three_part_plan(), 2.0))
    assert isinstance(event, PartWasRefused)
    assert event.part == 1


def test_an_abandoned_call_is_never_answered() -> None:
    combiner = opened()
    combiner.abandon(KEY, 1.0)
    assert deliver(combiner, [0, 1, 2]) == []
    assert combiner.expire(1000.0) == []


def test_parts_of_an_abandoned_call_take_no_memory() -> None:
    combiner = opened()
    deliver(combiner, [0])
    combiner.abandon(KEY, 1.0)
    deliver(combiner, [1])
    assert combiner.held_bytes() == 0


def test_an_owner_that_is_gone_takes_only_its_own_calls_along() -> None:
    combiner = opened()
    other = CallKey(9, 9)
    combiner.plan("other router", three_part_plan(key=other), 0.0)
    combiner.forget_owner("router", 1.0)
    assert combiner.stats().open == 1


def test_a_lost_source_is_told_once_to_each_owner_with_an_open_call() -> None:
    combiner = opened()
    combiner.plan("router", three_part_plan(key=CallKey(9, 9)), 0.0)
    combiner.plan("other", three_part_plan(key=CallKey(10, 9)), 0.0)
    assert combiner.source_lost("e1", 1.0) == [SourceWasLost("router", "e1"), SourceWasLost("other", "e1")]


def test_a_lost_source_interests_nobody_without_open_calls() -> None:
    combiner = opened()
    deliver(combiner, [0, 1, 2])
    assert combiner.source_lost("e1", 1.0) == []


def test_early_parts_are_dropped_when_their_plan_does_not_come_in_time() -> None:
    combiner = Combiner(CombinerLimits(early_seconds=5.0))
    deliver(combiner, [0], now=1.0)
    combiner.expire(6.0)
    assert combiner.held_bytes() == 0


def test_a_plan_that_comes_after_its_parts_were_dropped_has_them_sent_again() -> None:
    combiner = Combiner(CombinerLimits(early_seconds=5.0))
    deliver(combiner, [0], now=1.0)
    combiner.expire(6.0)
    event = only(combiner.plan("router", three_part_plan(), 7.0))
    assert isinstance(event, PartWasRefused)
    assert "send it again" in event.reason


def test_early_parts_have_a_bound_and_the_oldest_go_first() -> None:
    combiner = Combiner(CombinerLimits(early_bytes=1200))  # two parts of 16 bytes and 512 of bookkeeping each
    for call in (1, 2, 3):
        combiner.part(CallKey(call, 0), 0, partial(1.0), float(call))
    refused = [bool(combiner.plan("r", three_part_plan(key=CallKey(call, 0)), 4.0)) for call in (1, 2, 3)]
    assert refused == [True, False, False]


def test_open_calls_have_a_bound() -> None:
    combiner = opened(limits=CombinerLimits(open_calls=1))
    event = only(combiner.plan("router", three_part_plan(key=CallKey(9, 9)), 0.0))
    assert isinstance(event, CallWasRejected)
    assert "1 layer calls are open, the bound" in event.message


def test_waiting_parts_have_a_bound_in_bytes() -> None:
    combiner = opened(limits=CombinerLimits(held_bytes=20))
    event = only(deliver(combiner, [0, 1]))
    assert isinstance(event, PartWasRefused)
    assert "would take 32 bytes, the bound is 20" in event.reason


def test_memory_is_free_again_after_the_answer() -> None:
    combiner = opened()
    deliver(combiner, [0, 1, 2])
    assert combiner.held_bytes() == 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (CallPlan(KEY, 0, 2, torch.float32, WAIT, None, ()), "at least 1, got 0 and 2"),
        (CallPlan(KEY, 2**31, 2**31, torch.float32, WAIT, None, ()), "send fewer tokens"),
        (CallPlan(KEY, 1, 2, torch.int32, WAIT, None, ()), "plan.dtype: got int32"),
    ],
)
def test_rejects_a_plan_of_impossible_size(plan: CallPlan, message: str) -> None:
    event = only(Combiner().plan("router", plan, 0.0))
    assert isinstance(event, CallWasRejected)
    assert message in event.message


@pytest.mark.parametrize(
    ("index", "weights", "message"),
    [
        ([1, 0], [1.0, 1.0], "must rise strictly"),
        ([0, 0], [1.0, 1.0], "must rise strictly"),
        ([0, 3], [1.0, 1.0], "within 0 to 2"),
        ([-1, 0], [1.0, 1.0], "within 0 to 2"),
        ([], [], "at least one row"),
        ([0, 1], [1.0], "row_weights: got float32 [1], want float32 [2]"),
        ([0, 1], [1.0, float("nan")], "row_weights: must be finite"),
    ],
)
def test_rejects_a_plan_with_a_bad_part(index: list[int], weights: list[float], message: str) -> None:
    part = PlannedPart(0, torch.tensor(index, dtype=torch.int32), torch.tensor(weights))
    event = only(Combiner().plan("router", CallPlan(KEY, 3, 2, torch.float32, RENORMALISE, None, (part,)), 0.0))
    assert isinstance(event, CallWasRejected)
    assert message in event.message


@pytest.mark.parametrize("numbers", [[1, 0], [0, 0]])
def test_rejects_a_plan_whose_parts_do_not_ascend(numbers: list[int]) -> None:
    parts = tuple(PlannedPart(n, torch.tensor([0], dtype=torch.int32)) for n in numbers)
    event = only(Combiner().plan("router", CallPlan(KEY, 3, 2, torch.float32, WAIT, None, parts), 0.0))
    assert isinstance(event, CallWasRejected)
    assert "must ascend strictly" in event.message


def test_a_sum_that_overflows_the_answers_dtype_goes_without_its_largest_part() -> None:
    combiner = Combiner()
    combiner.plan("router", three_part_plan(dtype=torch.float16), 0.0)  # float16 ends at 65504
    values = {0: 40000.0, 1: 1.0, 2: 50000.0}
    events = [e for part, value in values.items() for e in combiner.part(KEY, part, partial(value), 1.0)]
    event = answer(events)
    assert [(m.part, m.rows) for m in event.missing] == [(2, 2)]
    assert event.rows.tolist() == [[40000.0] * 2, [40000.0] * 2, [1.0] * 2]


def test_figures_count_what_happened() -> None:
    combiner = opened(FAIL)
    combiner.part(KEY, 1, partial(float("nan")), 1.0)
    deliver(combiner, [0, 0, 2])
    combiner.give_up(KEY, 1, "no replica", 1.0)
    combiner.plan("router", three_part_plan(key=CallKey(9, 9), tokens=0), 1.0)
    combiner.plan("router", three_part_plan(key=CallKey(8, 9)), 1.0)
    stats = combiner.stats()
    got = (stats.combined, stats.open, stats.duplicates, stats.refused, stats.missing, stats.failed)
    assert got == (1, 1, 1, 1, 1, 1)
