"""What deterministic mode costs is measured on the model itself and leaves it as it was."""

import pytest
import torch
from moe.models.backbone import deterministic_cost, load_backbone
from moe.models.contract import PackedBatch, Segment
from support.families import write_checkpoint


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    checkpoint = write_checkpoint("mixtral", tmp_path_factory.mktemp("cost") / "checkpoint")
    return load_backbone(checkpoint, deterministic=True)


def first_logits(backbone):
    backbone.allocate(1, 8)
    batch = PackedBatch([Segment(0, 0, 3)], torch.tensor([5, 6, 7]), torch.tensor([2]))
    return backbone.step(batch, lambda layer, hidden, index, weights, rows: torch.zeros_like(hidden))


def test_it_is_told_for_a_decode_step_and_for_a_chunk(backbone):
    assert sorted(deterministic_cost(backbone)) == [1, 64]


def test_a_chunk_attended_row_by_row_costs_more_than_one_attended_at_once(backbone):
    assert deterministic_cost(backbone)[64] > 1


def test_measuring_leaves_the_bits_as_they_were(backbone):
    before = first_logits(backbone)
    deterministic_cost(backbone)
    assert torch.equal(first_logits(backbone), before)
