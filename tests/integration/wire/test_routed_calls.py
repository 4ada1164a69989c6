"""A wire that cuts a routing into parts itself gives the bits of one that is handed the parts."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moe.router.dispatch import plan_parts
from moe.wire.port import (
    FailureKind,
    Incomplete,
    MissingPolicy,
    Outcome,
    Places,
    RoutedCall,
    RoutedWire,
    Target,
)
from support.layer_calls import HIDDEN, toy_call
from support.wire_stage import GROUPS, IMPLEMENTATIONS, Attempts, Placement, Stage, combined, three_groups

PART_OF_EXPERT = (0, 0, 1, 2, 2)
EXPERTS = 5
_ids = count(1 << 40)


def routed_call(attempts: Attempts, tokens: int, topk: int, seed: int, dropped: bool = False) -> RoutedCall:
    """dropped: some slots name no expert."""
    generator = torch.Generator().manual_seed(seed)
    ids = EXPERTS + 2 if dropped else EXPERTS
    index = torch.rand(tokens, ids, generator=generator).topk(topk, 1).indices
    return RoutedCall(
        next(_ids),
        0,
        torch.randn(tokens, HIDDEN, generator=generator),
        index,
        torch.rand(tokens, topk, generator=generator),
        EXPERTS,
        Places(PART_OF_EXPERT, tuple(attempts.endpoints[part][0] for part in range(len(GROUPS)))),
        MissingPolicy.WAIT,
        time.monotonic() + 20.0,
        None,
        attempts.aggregator,
    )


def wire_of(attempts: Attempts) -> RoutedWire:
    """The router, which is warm: its streams are open."""
    combined(attempts.run(toy_call(GROUPS)))
    assert isinstance(attempts.router, RoutedWire)
    return attempts.router


def in_parts(attempts: Attempts, call: RoutedCall) -> Outcome:
    """The same call, cut by the router."""
    parts = plan_parts(call.index, call.weights, np.array(PART_OF_EXPERT, dtype=np.int32), EXPERTS)
    return attempts.run(replace(call.without_parts(), call_id=next(_ids), parts=parts))


@pytest.fixture(params=[Placement.EMBEDDED, Placement.UNIX], ids=lambda placement: placement.value)
def native(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(request.param, tmp_path, next(each for each in IMPLEMENTATIONS if each.name == "native"))
    yield stage
    stage.close()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_routed_call_has_the_bits_of_its_parts(native: Stage, dropped: bool) -> None:
    attempts = three_groups(native)
    wire = wire_of(attempts)
    for seed, (tokens, topk) in enumerate([(1, 1), (1, 2), (2, 5), (7, 2), (40, 3)]):
        call = routed_call(attempts, tokens, topk, seed, dropped)
        outcome = wire.exchange_routed(call, call.deadline)
        assert outcome is not None
        assert torch.equal(combined(outcome).rows, combined(in_parts(attempts, call)).rows)


def test_what_can_not_be_sent_leaves_no_call_open(native: Stage) -> None:
    attempts = three_groups(native)
    wire = wire_of(attempts)
    call = routed_call(attempts, 3, 2, 0)
    spoilt = call.hidden.clone()
    spoilt[1, 2] = float("nan")
    nobody = replace(call, index=torch.full_like(call.index, EXPERTS))
    assert wire.exchange_routed(replace(call, hidden=spoilt), call.deadline) is None
    assert wire.exchange_routed(nobody, call.deadline) is None
    assert torch.equal(
        combined(wire.exchange_routed(call, call.deadline)).rows, combined(in_parts(attempts, call)).rows
    )


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda call: {"index": call.index.int()}, "int32"),
        (lambda call: {"index": call.index[:-1]}, r"\[2, 2\]"),
        (lambda call: {"weights": call.weights[:, :1]}, r"\[3, 1\]"),
        (lambda call: {"index": call.index - 9}, "got expert -"),
        (lambda call: {"experts": 6}, "places are known of 5"),
        (lambda call: {"places": Places((0, 1), ("here",))}, "got part 1, want 0 to 0"),
    ],
)
def test_tensors_that_do_not_fit_together_are_named(
    native: Stage, spoil: Callable[[RoutedCall], dict[str, Any]], says: str
) -> None:
    attempts = three_groups(native)
    wire = wire_of(attempts)
    call = routed_call(attempts, 3, 2, 0)
    with pytest.raises(ValueError, match=says):
        wire.exchange_routed(replace(call, **spoil(call)), call.deadline)


def test_failures_and_silence_leave_the_call_open_for_exchange(native: Stage) -> None:
    attempts = three_groups(native)
    wire = wire_of(attempts)
    call = routed_call(attempts, 6, 5, 1)
    native.experts[1].raises = ValueError("no")
    native.experts[2].hold()
    outcome = wire.exchange_routed(call, time.monotonic() + 5.0)
    assert isinstance(outcome, Incomplete)
    assert [(failure.part, failure.kind) for failure in outcome.failures] == [(1, FailureKind.FAILED)]
    native.experts[1].raises = None
    native.experts[2].release()
    parts = plan_parts(call.index, call.weights, np.array(PART_OF_EXPERT, dtype=np.int32), EXPERTS)
    whole = replace(call.without_parts(), parts=parts)
    again = attempts.router.exchange(whole, [Target(1, native.experts[1].endpoint)], attempts.aggregator, call.deadline)
    assert torch.equal(combined(again).rows, combined(in_parts(attempts, call)).rows)


def test_renormalised_weights_are_those_of_the_parts(native: Stage) -> None:
    attempts = three_groups(native)
    wire = wire_of(attempts)
    native.experts[2].raises = ValueError("no")
    answers = []
    for way in ("routed", "parts"):
        call = replace(routed_call(attempts, 6, 2, 3), policy=MissingPolicy.RENORMALISE)
        parts = plan_parts(call.index, call.weights, np.array(PART_OF_EXPERT, dtype=np.int32), EXPERTS)
        whole = replace(call.without_parts(), parts=parts)
        targets = [Target(part.part, call.places.endpoints[part.part]) for part in parts]
        outcome = (
            wire.exchange_routed(call, call.deadline)
            if way == "routed"
            else attempts.router.exchange(whole, targets, attempts.aggregator, call.deadline)
        )
        assert isinstance(outcome, Incomplete), outcome
        attempts.router.give_up(whole, 2, "gone")
        answers.append(combined(attempts.router.exchange(whole, (), attempts.aggregator, call.deadline)))
    assert [missing.part for missing in answers[0].missing] == [2]
    assert torch.equal(answers[0].rows, answers[1].rows)
