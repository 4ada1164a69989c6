"""Cache memory is taken when it is first written."""

import torch
from moe.models.backbone.memory import untouched_zeros


def resident_bytes():
    with open("/proc/self/statm") as stream:  # noqa: PTH123
        return int(stream.read().split()[1]) * 4096


def test_what_was_not_written_is_not_resident():
    before = resident_bytes()
    slab = untouched_zeros((64, 1024, 1024), torch.bfloat16)
    slab[0].fill_(1)
    assert resident_bytes() - before < slab.nbytes / 8


def test_it_is_zero():
    assert not untouched_zeros((3, 5), torch.float32).any()


def test_it_can_be_written_and_read():
    slab = untouched_zeros((3, 5), torch.float32)
    slab[1, 2] = 7
    assert slab.sum() == 7


def test_no_elements_are_no_memory():
    assert untouched_zeros((0, 5), torch.float32).shape == (0, 5)
