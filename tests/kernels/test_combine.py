"""Adding partials: one order whatever the order of arrival, float32 sums, renormalising."""

import itertools

import pytest
import torch
from moe.kernels.combine import PartRows, combine, renormalise_scale

BACKENDS = ["reference", "torch"]


def part(index: int, tokens: list[int], dtype: torch.dtype = torch.float32, hidden: int = 7) -> PartRows:
    generator = torch.Generator().manual_seed(index)
    rows = torch.randn(len(tokens), hidden, generator=generator).to(dtype)
    return PartRows(index, torch.tensor(tokens, dtype=torch.int32), rows)


PARTS = {
    "none": [],
    "one over all tokens": [part(0, [0, 1, 2, 3, 4])],
    "overlapping": [part(0, [0, 2, 4]), part(1, [1, 2]), part(5, [2, 3, 4])],
    "an empty one": [part(0, []), part(1, [4])],
    "bfloat16": [part(0, [0, 1, 2], torch.bfloat16), part(1, [1, 2, 3], torch.bfloat16)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_the_back_ends_agree_to_the_bit(parts, scaled, dtype):
    scale = torch.linspace(0.5, 2, 5) if scaled else None
    sums = [combine(parts, 5, 7, dtype, scale=scale, backend=name) for name in BACKENDS]
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_order_of_arrival_gives_the_same_bits(backend):
    parts = [part(index, [0, 1, 2, 3]) for index in range(4)]
    sums = [combine(order, 4, 7, torch.float32, backend=backend) for order in itertools.permutations(parts)]
    assert all(torch.equal(total, sums[0]) for total in sums)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_are_added_in_ascending_order(backend):
    # In the order 0, 1, 2: 1e8 + 1 - 1e8 is 0 in float32; any order that adds the two large ones first gives 1.
    rows = {2: -1e8, 0: 1e8, 1: 1.0}
    parts = [PartRows(index, torch.tensor([0]), torch.tensor([[value]])) for index, value in rows.items()]
    assert combine(parts, 1, 1, torch.float32, backend=backend).item() == 0.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_are_wider_than_bfloat16(backend):
    values = {0: 256.0, 1: 1.0, 2: 1.0}
    parts = [
        PartRows(index, torch.tensor([0]), torch.tensor([[value]], dtype=torch.bfloat16))
        for index, value in values.items()
    ]
    assert combine(parts, 1, 1, torch.bfloat16, backend=backend).item() == 258.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_that_no_part_touches_are_zero(backend):
    got = combine([part(0, [1])], 3, 7, torch.float32, backend=backend)
    assert got[[0, 2]].abs().sum() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_tokens_give_no_rows(backend):
    assert combine([], 0, 7, torch.bfloat16, backend=backend).shape == (0, 7)


def test_renormalising_scales_up_to_the_full_sum():
    total, missing = torch.tensor([1.0, 0.8]), torch.tensor([0.25, 0.0])
    torch.testing.assert_close(renormalise_scale(total, missing), torch.tensor([1 / 0.75, 1.0]), rtol=1e-6, atol=0)


def test_renormalising_leaves_a_token_with_nothing_left_alone():
    # 0.1 + 0.2 summed in float32 in another order differs from 0.3 by a rounding; that is nothing left.
    total = torch.tensor([1.0, 0.3, 0.0])
    missing = torch.tensor([1.0, 0.1 + 0.2 - 1e-8, 0.0])
    assert renormalise_scale(total, missing).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("tokens", [[1, 1], [2, 1], [-1, 0], [0, 5]])
def test_an_index_that_does_not_rise_within_the_tokens_is_refused(tokens):
    with pytest.raises(ValueError, match="part 3: token_index must rise strictly within 0 to 4"):
        combine([part(3, [0]), PartRows(3, torch.tensor(tokens), torch.zeros(2, 7))], 5, 7, torch.float32)


def test_rows_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"part 3: .* want \[n\] and \[n, 8\]"):
        combine([part(3, [0])], 5, 8, torch.float32)


def test_a_scale_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"scale: got shape \[4\], want \[5\]"):
        combine([], 5, 7, torch.float32, scale=torch.ones(4))
