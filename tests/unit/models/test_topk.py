"""Other than the checkpoint's own top-k: what transformers computes when so configured, or fewer of the own choice."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from moe.models.backbone import BackboneError, TransformersBackbone, load_backbone
from moe.models.seams.gates import FIXED_TOPK
from support.families import FAMILIES, load_reference, write_checkpoint
from support.local_experts import LocalExperts
from support.packed_loop import generate, random_prompts
from torch import Tensor

PROMPTS = random_prompts((9, 20))
NEW = 3
TOLERANCE = 1e-4
"""Of logits in float32, as in tests/exactness."""

FIXED = {"phimoe"}
SEVERAL = [family for family in FAMILIES if family != "llama4_text"]
"""Families whose own top-k is more than one."""

StageOf = Callable[[str], tuple[TransformersBackbone, LocalExperts, Path]]


@pytest.fixture(scope="module")
def stage_of(tmp_path_factory: pytest.TempPathFactory) -> StageOf:
    @cache
    def load(family: str) -> tuple[TransformersBackbone, LocalExperts, Path]:
        directory = write_checkpoint(family, tmp_path_factory.mktemp(family))
        backbone = load_backbone(directory)
        backbone.allocate(2, 64)
        return backbone, LocalExperts(load_reference(directory)), directory

    return load


def configured(checkpoint: Path, topk: int) -> Path:
    """The checkpoint with another top-k in its configuration."""
    file = checkpoint / "config.json"
    document = json.loads(file.read_text())
    other = checkpoint.with_name(f"{checkpoint.name}-{topk}")
    other.mkdir()
    for each in checkpoint.iterdir():
        (other / each.name).symlink_to(each)
    (other / "config.json").unlink()
    (other / "config.json").write_text(json.dumps({**document, "num_experts_per_tok": topk}))
    return other


@pytest.mark.parametrize("more", [-1, 1])
@pytest.mark.parametrize("family", [each for each in FAMILIES if each not in FIXED])
def test_with_another_topk_a_family_answers_as_if_its_configuration_said_so(
    stage_of: StageOf, family: str, more: int
) -> None:
    backbone, experts, checkpoint = stage_of(family)
    topk = max(1, backbone.info.topk + more)
    backbone.route(topk, "family")
    try:
        sequences = generate(backbone, experts, PROMPTS, NEW)
    finally:
        backbone.route(0, "family")

    reference = load_reference(configured(checkpoint, topk))
    for one in sequences:
        with torch.inference_mode():
            wanted = reference(torch.tensor([one.tokens])).logits[0, one.prompt - 1 : -1]
        torch.testing.assert_close(torch.stack(one.logits), wanted, atol=TOLERANCE, rtol=0)
    assert experts.calls[-1][2].numel() >= topk


@pytest.mark.parametrize("family", SEVERAL)
def test_drop_asks_the_heaviest_of_the_own_choice_with_their_own_weights(stage_of: StageOf, family: str) -> None:
    backbone, experts, _ = stage_of(family)

    def only_the_heaviest(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        lightest = weights.shape[1] - 1 - weights.flip(1).argmin(dim=1, keepdim=True)  # of equal ones the last
        return experts(layer, hidden, index, weights.scatter(1, lightest, 0.0), rows)

    wanted = generate(backbone, only_the_heaviest, PROMPTS, NEW)
    backbone.route(backbone.info.topk - 1, "drop")
    try:
        found = generate(backbone, experts, PROMPTS, NEW)
    finally:
        backbone.route(0, "family")

    assert experts.calls[-1][2].shape[1] == backbone.info.topk - 1
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.stack(one.logits), torch.stack(other.logits), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_back_at_its_own_topk_a_model_answers_to_the_bit_as_before(stage_of: StageOf, family: str) -> None:
    backbone, experts, _ = stage_of(family)
    before = generate(backbone, experts, PROMPTS, NEW)
    if family not in FIXED:
        backbone.route(backbone.info.topk + 1, "family")
        generate(backbone, experts, PROMPTS, NEW)

    backbone.route(0, "family")

    after = generate(backbone, experts, PROMPTS, NEW)
    pairs = zip(before, after, strict=True)
    assert all(torch.equal(torch.stack(one.logits), torch.stack(other.logits)) for one, other in pairs)


def test_a_gate_that_is_written_for_one_topk_refuses_others_and_names_the_way(stage_of: StageOf) -> None:
    backbone, _, _ = stage_of("phimoe")
    assert {type(gate.module).__name__ for gate in backbone.gates.values()} <= FIXED_TOPK
    with pytest.raises(BackboneError, match="PhimoeTopKRouter can't take other than 2 experts, but strategy drop"):
        backbone.route(1, "family")


@pytest.mark.parametrize(
    ("topk", "strategy", "words"),
    [
        (9, "family", "top-k is 9; want 1 to 8, the number of experts"),
        (-1, "family", "top-k is -1; want 1 to 8"),
        (2, "drop", "strategy drop with top-k 2 leaves nothing out; want 1 to 1"),
        (0, "drop", "strategy drop with top-k 0 leaves nothing out"),
    ],
)
def test_what_can_not_be_taken_is_refused_and_changes_nothing(
    stage_of: StageOf, topk: int, strategy: str, words: str
) -> None:
    backbone, _, _ = stage_of("mixtral")
    with pytest.raises(BackboneError, match=words):
        backbone.route(topk, strategy)
    assert [gate.topk for gate in backbone.gates.values()] == [2, 2, 2]
