"""Grouping slots by expert."""

import pytest
import torch
from moe.kernels.permute import group_slots

BACKENDS = ["reference", "torch"]

EXPERTS = {
    "none": [],
    "one": [7],
    "all to one expert": [3] * 20,
    "all different": [4, 2, 0, 3],
    "mixed": [5, 1, 5, 0, 1, 1, 5, 200],
}


def grouped(experts: list[int], backend: str, dtype: torch.dtype = torch.int32) -> list[tuple[int, list[int]]]:
    groups = group_slots(torch.tensor(experts, dtype=dtype), backend=backend)
    return [(expert, places.tolist()) for expert, places in groups]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("experts", EXPERTS.values(), ids=EXPERTS)
def test_the_back_ends_agree(experts, dtype):
    assert grouped(experts, "torch", dtype) == grouped(experts, "reference", dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_of_an_expert_keep_their_order(backend):
    assert grouped([5, 1, 5, 0, 1], backend) == [(0, [3]), (1, [1, 4]), (5, [0, 2])]


def test_floating_expert_ids_are_refused():
    with pytest.raises(ValueError, match=r"got torch\.float32 \[3\], want integers"):
        group_slots(torch.zeros(3))
