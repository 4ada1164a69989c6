"""Dispatches are written whole, and read only when they make sense whole; what is wrong is named."""

import time
from collections.abc import Callable

import pytest
import torch
from moe.api.expert.v1 import expert_pb2
from moe.api.tensor.v1 import tensor_pb2
from moe.runtime.errors import InvalidRequest
from moe.runtime.tensors import to_message
from moe.wire.dispatches import read_dispatch, write_dispatch
from moe.wire.port import ExpertLimits, LayerCall, MissingPolicy, Part, WorkItem
from torch import Tensor

LIMITS = ExpertLimits(3, torch.float32, {5: frozenset({2, 7})}, max_rows=4)
HIDDEN = torch.arange(12.0).reshape(4, 3)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


PART = Part(9, int32(1, 3), int32(0, 0, 1), int32(2, 7, 7), torch.tensor([0.5, 0.25, 0.125]))


def message(**changes: object) -> expert_pb2.DispatchRequest:
    call = LayerCall(77, 5, HIDDEN, (PART,), MissingPolicy.WAIT, time.monotonic() + 60.0)
    written = write_dispatch(call, PART, time.monotonic())
    written.aggregator = "agg-0.1"
    for name, value in changes.items():
        if isinstance(value, Tensor):
            getattr(written, name).CopyFrom(to_message(value))
        else:
            setattr(written, name, value)
    return written


def read(written: expert_pb2.DispatchRequest, limits: ExpertLimits = LIMITS) -> WorkItem:
    return read_dispatch(written, limits, time.monotonic(), ticket=None)


def test_a_dispatch_carries_the_rows_of_its_part() -> None:
    assert torch.equal(read(message()).rows, HIDDEN[[1, 3]])


def test_a_part_that_touches_every_row_carries_all() -> None:
    every = Part(0, int32(0, 1, 2, 3), int32(0, 1, 2, 3), int32(2, 2, 2, 2), torch.ones(4))
    call = LayerCall(77, 5, HIDDEN, (every,), MissingPolicy.WAIT, time.monotonic() + 60.0)
    written = write_dispatch(call, every, time.monotonic())
    written.aggregator = "agg"
    assert torch.equal(read(written).rows, HIDDEN)


def test_a_dispatch_carries_its_slots() -> None:
    item = read(message())
    got = (item.slot_rows.tolist(), item.slot_experts.tolist(), item.slot_weights.tolist())
    assert got == ([0, 0, 1], [2, 7, 7], [0.5, 0.25, 0.125])


def test_a_dispatch_names_its_call_part_and_aggregator() -> None:
    item = read(message())
    assert (item.call_id, item.layer, item.part, item.aggregator) == (77, 5, 9, "agg-0.1")


def test_the_partials_dtype_is_that_of_the_rows_unless_named() -> None:
    dtypes = [read(message(partial_dtype=wanted)).partial_dtype for wanted in (0, tensor_pb2.DTYPE_BFLOAT16)]
    assert dtypes == [torch.float32, torch.bfloat16]


def test_values_need_not_be_finite() -> None:
    rows = torch.full((2, 3), float("nan"))
    assert torch.isnan(read(message(rows=rows)).rows).all()


def test_weights_may_have_the_dtype_of_the_rows() -> None:
    limits = ExpertLimits(3, torch.bfloat16, LIMITS.experts_by_layer)
    item = read(message(rows=HIDDEN[:2].bfloat16(), slot_weights=torch.ones(3).bfloat16()), limits)
    assert item.slot_weights.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rows": torch.zeros(2, 4)}, "rows.shape: got [2, 4], want [any, 3]"),
        ({"rows": torch.zeros(2, 3).bfloat16()}, "rows.dtype: got bfloat16, want float32"),
        ({"rows": torch.zeros(0, 3)}, "rows: got 0 rows, want 1 to 4"),
        ({"rows": torch.zeros(5, 3)}, "rows: got 5 rows, want 1 to 4"),
        ({"layer": 6}, "layer: got 6, want one of 5"),
        ({"slot_rows": int32(0, 1, 0)}, "slot_rows: got [0, 1, 0], want not decreasing from 0 to 1"),
        ({"slot_rows": int32(0, 0, 2)}, "slot_rows: got [0, 0, 2]"),
        ({"slot_rows": int32(0, 0, 0)}, "slot_rows: got [0, 0, 0]"),
        ({"slot_rows": int32(-1, 0, 1)}, "slot_rows: got [-1, 0, 1]"),
        ({"slot_rows": torch.tensor([0, 0, 1])}, "slot_rows.dtype: got int64, want int32"),
        ({"slot_experts": int32(2, 3, 7)}, "slot_experts: got 3, want experts that are held here in layer 5: 2, 7"),
        ({"slot_experts": int32(2, 7)}, "slot_experts.shape: got [2], want [3]"),
        ({"slot_weights": torch.ones(3).half()}, "slot_weights.dtype: got float16, want float32"),
        ({"slot_weights": torch.ones(4)}, "slot_weights.shape: got [4], want [3]"),
        ({"aggregator": ""}, "aggregator: got 0 characters"),
        ({"aggregator": "a" * 257}, "aggregator: got 257 characters"),
        ({"partial_dtype": tensor_pb2.DTYPE_INT32}, "partial_dtype: got torch.int32"),
        ({"partial_dtype": 99}, "partial_dtype: unknown dtype 99"),
    ],
)
def test_what_makes_no_sense_is_named(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(message(**changes))
    assert complaint in caught.value.message


def _cut(written: expert_pb2.DispatchRequest) -> None:
    written.rows.data = written.rows.data[:-1]


def _empty_slots(written: expert_pb2.DispatchRequest) -> None:
    for name, dtype in (("slot_rows", torch.int32), ("slot_experts", torch.int32), ("slot_weights", torch.float32)):
        getattr(written, name).CopyFrom(to_message(torch.zeros(0, dtype=dtype)))


def _many_slots(written: expert_pb2.DispatchRequest) -> None:
    written.slot_rows.CopyFrom(to_message(int32(0, 0, 0, 0, 1)))
    written.slot_experts.CopyFrom(to_message(int32(2, 2, 2, 2, 2)))
    written.slot_weights.CopyFrom(to_message(torch.ones(5)))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_cut, "rows.data: got 23 bytes, want 24"),
        (_empty_slots, "slot_rows: got 0 slots for 2 rows, want 2 to 4"),
        (_many_slots, "slot_rows: got 5 slots for 2 rows, want 2 to 4"),
    ],
)
def test_sizes_that_do_not_fit_are_named(spoil: Callable[[expert_pb2.DispatchRequest], None], complaint: str) -> None:
    written = message()
    spoil(written)
    with pytest.raises(InvalidRequest) as caught:
        read(written)
    assert complaint in caught.value.message
