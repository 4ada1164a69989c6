"""How packed rows are dealt out to linear-attention layers, and what their states go through."""

import pytest
import torch
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.geometry import Geometry, RecurrentLayer
from moe.models.backbone.recurrent import RowGroup, SlotStates, row_groups, run_recurrent, token_groups
from moe.models.backbone.segments import PackedRows
from moe.models.contract import Segment
from torch import Tensor

MIXED = [Segment(2, 9, 1), Segment(0, 0, 3), Segment(1, 4, 1), Segment(3, 2, 2)]


def as_lists(group: RowGroup) -> tuple[list[int], list[int]]:
    return group.rows.tolist(), group.slots.tolist()


def cache_of(slots: int = 4) -> SlotCache:
    layer = RecurrentLayer((2, 3), torch.float32, (1, 2, 2), torch.float32)
    return SlotCache(Geometry({}, {5: layer}), slots, 32)


def test_decoding_rows_go_together_and_chunks_alone() -> None:
    assert [as_lists(group) for group in row_groups(PackedRows(MIXED))] == [
        ([0, 4], [2, 1]),
        ([1, 2, 3], [0]),
        ([5, 6], [3]),
    ]


def test_deterministic_mode_takes_every_sequence_s_next_token_together() -> None:
    assert [as_lists(group) for group in token_groups(PackedRows(MIXED))] == [
        ([0, 1, 4, 5], [2, 0, 1, 3]),
        ([2, 6], [0, 3]),
        ([3], [0]),
    ]


def test_deterministic_mode_never_takes_more_than_a_tile() -> None:
    rows = PackedRows([Segment(slot, 0, 1) for slot in range(20)])

    assert [len(group.slots) for group in token_groups(rows)] == [16, 4]


def counting(inputs: Tensor, cache: SlotStates) -> Tensor:
    """A module that adds up what a sequence has seen, with the sum as its state."""
    state = cache.get_recurrent_state(5)
    cache.get_conv_state(5)
    sums = inputs.sum(-1).cumsum(1) + state[:, 0, 0, :1]
    state = state.clone()
    state[:, 0, 0, 0] = sums[:, -1]
    cache.update_recurrent_state(state, 5)
    return sums[..., None].expand_as(inputs).clone()


@pytest.mark.parametrize("deterministic", [False, True])
def test_states_follow_their_slots_over_steps(deterministic: bool) -> None:
    cache = cache_of()
    first, second = [Segment(1, 0, 2), Segment(3, 0, 1)], [Segment(3, 1, 2), Segment(1, 2, 1)]
    run_recurrent(
        counting, torch.tensor([[[1.0], [2.0], [10.0]]]), PackedRows(first), cache, deterministic=deterministic
    )

    hidden = torch.tensor([[[20.0], [30.0], [4.0]]])
    result = run_recurrent(counting, hidden, PackedRows(second), cache, deterministic=deterministic)

    assert result.flatten().tolist() == [30.0, 60.0, 7.0]


def test_rows_of_padding_stay_zero() -> None:
    rows = PackedRows([Segment(0, 0, 1)], padded=4)

    result = run_recurrent(counting, torch.ones(1, 4, 1), rows, cache_of(), deterministic=True)

    assert result.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_convolution_sees_the_inputs_before_a_chunk() -> None:
    cache = cache_of()
    cache.convolutions[5][2] = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    states = SlotStates(cache, torch.tensor([2]), 1)

    whole = states.update_conv_state(torch.tensor([[[7.0, 8.0], [9.0, 10.0]]]), 5)

    assert whole[0].tolist() == [[1.0, 2.0, 3.0, 7.0, 8.0], [4.0, 5.0, 6.0, 9.0, 10.0]]


def test_a_convolution_keeps_its_last_inputs() -> None:
    cache = cache_of()
    states = SlotStates(cache, torch.tensor([2]), 1)
    states.update_conv_state(torch.tensor([[[7.0, 8.0], [9.0, 10.0]]]), 5)

    states.update_recurrent_state(torch.zeros(1, 1, 2, 2), 5)

    assert cache.convolutions[5][2].tolist() == [[0.0, 7.0, 8.0], [0.0, 9.0, 10.0]]


def test_inputs_changed_in_place_are_kept() -> None:
    cache = cache_of()
    states = SlotStates(cache, torch.tensor([2]), 1)
    states.get_conv_state(5).copy_(torch.full((1, 2, 3), 8.0))

    states.update_recurrent_state(torch.zeros(1, 1, 2, 2), 5)

    assert cache.convolutions[5][2].tolist() == [[8.0] * 3] * 2
