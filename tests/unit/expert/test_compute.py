"""A batch's partials: against the sum written out, apart by item, deterministic to the bit."""

import pytest
import torch
from moe.expert.compute import compute
from moe.expert.packing import Computation, pack
from moe.kernels.ffn import ffn
from support.expert_double import work
from support.ffn_cases import rows as draw_rows
from support.ffn_cases import widened
from support.tiny_package import HIDDEN, SILU, expert_weights

SLOTS = {
    "one row, one expert": [(0, 2, 0.5)],
    "two experts a row": [(0, 3, 0.7), (0, 1, 0.3), (1, 0, 0.6), (1, 3, 0.4)],
    "all rows to one expert": [(row, 1, 1.0) for row in range(20)],
    "ragged": [(0, 0, 0.5), (1, 2, 0.1), (1, 0, 0.2), (1, 3, 0.7), (2, 3, 1.0)],
    "a weight of zero": [(0, 0, 0.0)],
}


def written_out(rows: torch.Tensor, slots: list[tuple[int, int, float]], layer: int) -> torch.Tensor:
    """The weighted sums in float64 by the reference."""
    total = torch.zeros(len(rows), HIDDEN, dtype=torch.float64)
    for row, expert, weight in slots:
        held = widened(expert_weights(layer, expert))
        total[row] += weight * ffn(rows[row : row + 1].double(), held, SILU, backend="reference")[0]
    return total


@pytest.fixture(params=["native", "torch", "reference"])
def deterministic(request, mapped):
    return pack(mapped, Computation(request.param, deterministic=True))


@pytest.mark.parametrize("deterministic", ["native", "torch"], indirect=True)
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_a_partial_is_the_weighted_sum_over_the_rows_slots(group, slots, deterministic):
    rows = draw_rows(slots[-1][0] + 1, HIDDEN, torch.float32)
    for packed in (group, deterministic):
        result = compute([work(rows, slots)], packed)
        torch.testing.assert_close(result.partials[0].double(), written_out(rows, slots, 0), rtol=1e-5, atol=1e-5)


def test_each_layer_has_its_own_weights(group):
    rows, slots = draw_rows(1, HIDDEN, torch.float32), [(0, 2, 1.0)]
    result = compute([work(rows, slots, layer=2)], group)
    torch.testing.assert_close(result.partials[0].double(), written_out(rows, slots, 2), rtol=1e-5, atol=1e-5)


def test_joined_items_get_their_own_rows_back(group):
    first, second = draw_rows(3, HIDDEN, torch.float32, seed=1), draw_rows(2, HIDDEN, torch.float32, seed=2)
    slots = ([(0, 1, 0.5), (1, 1, 0.5), (2, 0, 1.0)], [(0, 1, 0.2), (1, 0, 0.3), (1, 2, 0.7)])
    result = compute([work(first, slots[0]), work(second, slots[1])], group)
    want = torch.cat([written_out(first, slots[0], 0), written_out(second, slots[1], 0)])
    torch.testing.assert_close(torch.cat(result.partials).double(), want, rtol=1e-5, atol=1e-5)


def test_slots_are_counted_by_expert(group):
    rows = draw_rows(2, HIDDEN, torch.float32)
    result = compute([work(rows, [(0, 1, 1.0), (1, 1, 1.0)]), work(rows, [(0, 3, 1.0), (1, 1, 1.0)])], group)
    assert result.slots == {1: 3, 3: 1}


def test_a_partial_has_the_dtype_that_was_asked_for(group):
    rows = draw_rows(1, HIDDEN, torch.float32)
    result = compute([work(rows, [(0, 0, 1.0)], partial_dtype=torch.bfloat16)], group)
    assert result.partials[0].dtype == torch.bfloat16


def test_a_poisonous_row_stays_in_its_row_and_item(group):
    clean, slots = draw_rows(3, HIDDEN, torch.float32), [(0, 1, 0.5), (1, 1, 0.5), (2, 1, 0.5)]
    poisoned = clean.clone()
    poisoned[1, 4] = float("nan")
    result = compute([work(poisoned, slots), work(clean, slots)], group)
    assert [partial.isfinite().all(dim=1).tolist() for partial in result.partials] == [[True, False, True], [True] * 3]


def test_deterministic_a_rows_bits_do_not_depend_on_its_batch(deterministic):
    rows = draw_rows(40, HIDDEN, torch.float32)
    slots = [(row, expert, 0.5) for row in range(40) for expert in (row % 3, 3)]
    together = compute([work(rows, slots)], deterministic).partials[0]
    alone = [compute([work(rows[row : row + 1], [(0, row % 3, 0.5), (0, 3, 0.5)])], deterministic) for row in range(40)]
    assert torch.equal(together, torch.cat([each.partials[0] for each in alone]))


def test_deterministic_a_rows_bits_do_not_depend_on_the_joined_items(deterministic):
    rows, other = draw_rows(7, HIDDEN, torch.float32), draw_rows(30, HIDDEN, torch.float32, seed=5)
    slots = [(row, 1, 0.25) for row in range(7)]
    alone = compute([work(rows, slots)], deterministic).partials[0]
    joined = compute([work(other, [(row, 1, 1.0) for row in range(30)]), work(rows, slots)], deterministic).partials[1]
    assert torch.equal(alone, joined)
