"""Plans and answers cross the wire whole."""

import time

import pytest
import torch
from moe.api.aggregator.v1 import aggregator_pb2
from moe.runtime.errors import InvalidRequest
from moe.wire.combining import Answered, CallKey, CallPlan
from moe.wire.plans import plan_of, read_answer, read_plan, write_answer, write_plan
from moe.wire.port import LayerCall, MissingPart, MissingPolicy, Part
from support.layer_plans import three_part_plan


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def across(plan: CallPlan) -> CallPlan:
    return read_plan(aggregator_pb2.Plan.FromString(write_plan(plan, 0.0).SerializeToString()), 0.0)


@pytest.mark.parametrize("policy", MissingPolicy)
def test_a_plan_crosses_the_wire(policy: MissingPolicy) -> None:
    plan = three_part_plan(policy, dtype=torch.bfloat16)
    assert {**vars(across(plan)), "parts": ()} == {**vars(plan), "parts": ()}


def test_a_plans_parts_cross_the_wire() -> None:
    plan = three_part_plan()
    for got, want in zip(across(plan).parts, plan.parts, strict=True):
        assert got.part == want.part
        assert torch.equal(got.token_index, want.token_index)
        assert torch.equal(got.row_weights, want.row_weights)


def test_a_plan_without_a_deadline_has_none_on_the_other_side() -> None:
    assert across(three_part_plan(deadline=None)).deadline is None


@pytest.mark.parametrize("policy", [0, 77])
def test_a_plan_without_a_known_policy_is_refused(policy: int) -> None:
    message = write_plan(three_part_plan(), 0.0)
    message.policy = policy
    with pytest.raises(InvalidRequest, match=r"plan\.policy"):
        read_plan(message, 0.0)


def test_a_calls_plan_lists_parts_in_ascending_order() -> None:
    parts = [Part(number, int32(0), int32(0), int32(number), torch.ones(1)) for number in (2, 0)]
    call = LayerCall(1, 0, torch.zeros(1, 4), tuple(parts), MissingPolicy.WAIT, time.monotonic())
    assert [part.part for part in plan_of(call).parts] == [0, 2]


def test_under_renormalise_a_plan_has_each_rows_weight() -> None:
    part = Part(0, int32(0, 2), int32(0, 0, 1), int32(0, 1, 1), torch.tensor([0.5, 0.25, 0.125]))
    call = LayerCall(1, 0, torch.zeros(3, 4), (part,), MissingPolicy.RENORMALISE, time.monotonic())
    assert plan_of(call).parts[0].row_weights.tolist() == [0.75, 0.125]


def test_an_answer_crosses_the_wire() -> None:
    rows = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    event = Answered("router", CallKey(2**63 + 1, 4), rows, (MissingPart(3, "late", 2),))
    message = aggregator_pb2.Combined.FromString(write_answer(event).SerializeToString())
    got = read_answer(message)
    assert torch.equal(got.rows, rows)
    assert (message.call_id, message.layer, got.missing) == (2**63 + 1, 4, event.missing)
