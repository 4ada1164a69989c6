"""The weighted sum of a row's slots: order, rounding, rows without slots."""

import pytest
import torch
from moe.kernels.slot_sum import slot_sum

BACKENDS = ["reference", "torch"]

SLOTS = {
    "one slot a row": [0, 1, 2, 3, 4],
    "two slots a row": [0, 0, 1, 1, 2, 2],
    "ragged, with empty rows": [0, 2, 2, 2, 4, 4],
    "all slots of one row": [3, 3, 3, 3],
    "no slots": [],
}


def case(slot_rows: list[int], dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(len(slot_rows), 7, generator=generator).to(dtype)
    return outputs, torch.tensor(slot_rows, dtype=torch.int32), torch.rand(len(slot_rows), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slot_rows", SLOTS.values(), ids=SLOTS)
def test_the_back_ends_agree_to_the_bit(slot_rows, weight_dtype, dtype):
    outputs, index, weights = case(slot_rows, dtype)
    sums = [slot_sum(outputs, index, weights.to(weight_dtype), 5, dtype, backend=name) for name in BACKENDS]
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_are_added_in_their_order(backend):
    # 1e8 + 1 - 1e8 is 0 in float32, 1e8 - 1e8 + 1 is 1.
    outputs = torch.tensor([[1e8], [1.0], [-1e8], [1e8], [-1e8], [1.0]])
    got = slot_sum(outputs, torch.tensor([0, 0, 0, 1, 1, 1]), torch.ones(6), 2, torch.float32, backend=backend)
    assert got.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_are_wider_than_bfloat16(backend):
    # 256 + 1 + 1 is 258 in float32 and then in bfloat16; in bfloat16 alone, 256 + 1 is 256 both times.
    outputs = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    weights = torch.ones(3, dtype=torch.bfloat16)
    got = slot_sum(outputs, torch.tensor([0, 0, 0]), weights, 1, torch.bfloat16, backend=backend)
    assert got.item() == 258.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_without_slots_is_zero(backend):
    outputs, index, weights = case([0, 2], torch.float32)
    assert slot_sum(outputs, index, weights, 4, torch.float32, backend=backend)[[1, 3]].abs().sum() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows_give_no_rows(backend):
    outputs, index, weights = case([], torch.float32)
    assert slot_sum(outputs, index, weights, 0, torch.bfloat16, backend=backend).shape == (0, 7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_poisonous_slot_stays_in_its_row(backend):
    outputs, index, weights = case([0, 0, 1, 1, 2], torch.float32)
    outputs[2] = float("nan")
    got = slot_sum(outputs, index, weights, 3, torch.float32, backend=backend)
    assert got.isfinite().all(dim=1).tolist() == [True, False, True]


def test_a_single_slot_has_the_same_bits_among_rows_of_several():
    outputs, _, weights = case([0, 0, 0], torch.float32)
    outputs[0, 0] = -0.0
    alone = slot_sum(outputs[:1], torch.tensor([0]), weights[:1], 1, torch.float32)
    among = slot_sum(outputs, torch.tensor([0, 1, 1]), weights, 2, torch.float32)[:1]
    assert torch.equal(alone.view(torch.int32), among.view(torch.int32))


@pytest.mark.parametrize("index", [[1, 0], [-1, 0], [0, 2]])
def test_rows_out_of_order_or_range_are_refused(index):
    with pytest.raises(ValueError, match="must not decrease and lie within 0 to 1"):
        slot_sum(torch.zeros(2, 3), torch.tensor(index), torch.ones(2), 2, torch.float32)


def test_weights_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"\[2, 3\], \[2\] and \[1\]"):
        slot_sum(torch.zeros(2, 3), torch.tensor([0, 1]), torch.ones(1), 2, torch.float32)
