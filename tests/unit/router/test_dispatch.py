"""Cutting a layer's routing into parts: nothing lost, nothing sent twice, dropped slots never sent."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.router.dispatch import plan_few, plan_many, plan_parts
from moe.wire.port import Part
from torch import Tensor

PART_OF_EXPERT = np.array([0, 0, 1, 2, 2, 2], dtype=np.int32)


def parts_of(index: list[list[int]], keep: list[bool] | None = None) -> tuple[Part, ...]:
    ids = torch.tensor(index)
    weights = torch.arange(1, ids.numel() + 1, dtype=torch.float32).reshape(ids.shape) / 64
    return plan_parts(ids, weights, PART_OF_EXPERT, 6, None if keep is None else np.array(keep))


def as_lists(part: Part) -> tuple[int, list[int], list[int], list[int], list[float]]:
    arrays = (part.token_index, part.slot_rows, part.slot_experts, part.slot_weights * 64)
    return part.part, *(array.tolist() for array in arrays)


def test_each_group_gets_its_rows_once_with_the_slots_in_order() -> None:
    assert [as_lists(part) for part in parts_of([[1, 3], [0, 1], [5, 4]])] == [
        (0, [0, 1], [0, 1, 1], [1, 0, 1], [1, 3, 4]),
        (2, [0, 2], [0, 1, 1], [3, 5, 4], [2, 5, 6]),
    ]


def test_dropped_slots_are_not_sent() -> None:
    assert [as_lists(part) for part in parts_of([[6, 2], [6, 6], [99, 6]])] == [(1, [0], [0], [2], [2])]


def test_rows_not_to_be_kept_are_not_sent() -> None:
    assert [as_lists(part) for part in parts_of([[0, 2], [0, 2]], keep=[False, True])] == [
        (0, [1], [0], [0], [3]),
        (1, [1], [0], [2], [4]),
    ]


def test_a_layer_without_slots_has_no_parts() -> None:
    assert parts_of([[6, 7], [8, 6]]) == ()


def test_no_rows_have_no_parts() -> None:
    empty = torch.empty(0, 2, dtype=torch.int64)
    assert plan_parts(empty, torch.empty(0, 2), PART_OF_EXPERT, 6) == ()


def test_weights_keep_their_dtype() -> None:
    assert plan_parts(torch.tensor([[0]]), torch.ones(1, 1).bfloat16(), PART_OF_EXPERT, 6)[0].slot_weights.dtype == (
        torch.bfloat16
    )


def dense(index: Tensor, weights: Tensor, experts: int, keep: Tensor) -> Tensor:
    """[n, experts]: the weight of each row's slots, summed by expert."""
    table = torch.zeros(len(index), experts + 3, dtype=torch.float64)
    table.scatter_add_(1, index, weights.double())
    return table[:, :experts] * keep[:, None]


@given(data=st.data(), rows=st.integers(1, 12), topk=st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_the_parts_together_are_the_routing(data: st.DataObject, rows: int, topk: int) -> None:
    experts = 5  # the layer has fewer experts than the table: id 5 is a dropped slot here
    index = torch.tensor(
        data.draw(st.lists(st.lists(st.integers(0, 7), min_size=topk, max_size=topk), min_size=rows, max_size=rows))
    )
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    weights = torch.rand(rows, topk, generator=torch.Generator().manual_seed(rows * 10 + topk))
    rebuilt = torch.zeros(rows, experts, dtype=torch.float64)
    for part in plan_parts(index, weights, PART_OF_EXPERT, experts, keep.numpy()):
        assert bool((part.token_index.diff() > 0).all())
        assert bool((part.slot_rows.diff() >= 0).all())
        row = part.token_index[part.slot_rows.long()].long()
        rebuilt.index_put_((row, part.slot_experts.long()), part.slot_weights.double(), accumulate=True)
    assert torch.equal(rebuilt, dense(index, weights, experts, keep))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_slot_by_slot_and_in_one_go_give_the_same_parts(data: st.DataObject) -> None:
    rows, topk = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    index = data.draw(st.lists(st.lists(st.integers(0, 8), min_size=topk, max_size=topk), min_size=rows, max_size=rows))
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    ids, weights = torch.tensor(index), torch.rand(rows, topk)
    few, many = (plan(ids, weights, PART_OF_EXPERT, 6, keep) for plan in (plan_few, plan_many))
    assert [as_lists(part) for part in few] == [as_lists(part) for part in many]
    assert [part.token_index.dtype for part in few] == [torch.int32] * len(few)
