"""Shared experts run while the routed ones work elsewhere, and nothing else changes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from moe.models.backbone import TransformersBackbone, load_backbone
from moe.models.contract import PackedBatch, Segment
from support.families import write_checkpoint
from torch import Tensor

OVERLAPPED = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text", "deepseek_v2", "deepseek_v3", "glm4_moe", "llama4_text")


class Elsewhere:
    """Experts that answer half of what they are asked, and note whether the shared expert ran in the meantime."""

    def __init__(self, *, fills: bool = True) -> None:
        self._fills = fills
        self.waiting = False
        self.filled = 0

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        return hidden / 2

    def overlap(
        self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor, meanwhile: Callable[[], None]
    ) -> Tensor:
        if self._fills:
            self.waiting = True
            meanwhile()
            self.waiting = False
            self.filled += 1
        return hidden / 2


def at_once(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    return hidden / 2


def two_steps(backbone: TransformersBackbone, experts: Callable[..., Tensor]) -> Tensor:
    backbone.allocate(1, 16)
    first = PackedBatch([Segment(0, 0, 7)], torch.arange(5, 12), torch.arange(7))
    second = PackedBatch([Segment(0, 7, 1)], torch.tensor([3]), torch.tensor([0]))
    return torch.cat([backbone.step(batch, experts) for batch in (first, second)])


@pytest.fixture(scope="module", params=[False, True], ids=["fast", "deterministic"])
def load(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], TransformersBackbone]:
    def backbone(family: str) -> TransformersBackbone:
        checkpoint: Path = write_checkpoint(family, tmp_path_factory.mktemp("shared") / family)
        return load_backbone(checkpoint, deterministic=request.param)

    return backbone


@pytest.mark.parametrize("family", OVERLAPPED)
def test_logits_are_the_same_to_the_bit_and_every_layer_s_wait_is_filled(
    load: Callable[[str], TransformersBackbone], family: str
) -> None:
    backbone, elsewhere = load(family), Elsewhere()
    assert torch.equal(two_steps(backbone, elsewhere), two_steps(backbone, at_once))
    assert elsewhere.filled == 2 * len(backbone.info.moe_layers)


@pytest.mark.parametrize("family", OVERLAPPED)
def test_experts_that_leave_no_time_change_nothing(load: Callable[[str], TransformersBackbone], family: str) -> None:
    backbone = load(family)
    assert torch.equal(two_steps(backbone, Elsewhere(fills=False)), two_steps(backbone, at_once))


def test_a_step_that_failed_leaves_nothing_for_the_next(load: Callable[[str], TransformersBackbone]) -> None:
    backbone = load("qwen2_moe")
    wanted = two_steps(backbone, at_once)

    def fail(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        two_steps(backbone, fail)
    assert torch.equal(two_steps(backbone, Elsewhere()), wanted)
