"""The gate seam: patches change logits before the family's own choice, and dead experts are never asked for."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from moe.models.backbone import BackboneError, TransformersBackbone, load_backbone
from moe.models.seams.gates import find_gates
from support.families import FAMILIES, load_reference, make_model, write_checkpoint
from support.local_experts import LocalExperts
from support.packed_loop import generate, random_prompts

GateStage = tuple[TransformersBackbone, LocalExperts]


@pytest.fixture(scope="module")
def stage_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GateStage]:
    @cache
    def load(family: str) -> GateStage:
        directory = write_checkpoint(family, tmp_path_factory.mktemp(family))
        backbone = load_backbone(directory)
        backbone.allocate(2, 64)
        return backbone, LocalExperts(load_reference(directory))

    return load


def first_logits(stage: GateStage) -> torch.Tensor:
    backbone, experts = stage
    experts.calls.clear()
    sequences = generate(backbone, experts, random_prompts((9, 20)), 2)
    return torch.stack([logits for one in sequences for logits in one.logits])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_moe_layer_has_a_gate(family: str) -> None:
    model = make_model(family)

    assert [gate.topk for gate in find_gates(model).values()] == [model.config.num_experts_per_tok] * len(
        find_gates(model)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_an_identity_patch_changes_no_bit(stage_of: Callable[[str], GateStage], family: str) -> None:
    stage = stage_of(family)
    untouched = first_logits(stage)
    for gate in stage[0].gates.values():
        gate.patches.append(lambda logits: logits)
    try:
        assert torch.equal(first_logits(stage), untouched)
    finally:
        for gate in stage[0].gates.values():
            gate.patches.clear()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_patch_sees_one_logit_per_row_and_expert(stage_of: Callable[[str], GateStage], family: str) -> None:
    stage = stage_of(family)
    layer, gate = next(iter(stage[0].gates.items()))
    seen: list[torch.Size] = []
    gate.patches.append(lambda logits: (seen.append(logits.shape), logits)[1])
    try:
        first_logits(stage)
    finally:
        gate.patches.clear()

    # 9 + 16 rows, then 1 + 4 (the second prompt's rest), then 1.
    assert [tuple(shape) for shape in seen] == [(rows, stage[0].info.moe_layers[layer]) for rows in (25, 5, 1)]


@pytest.mark.parametrize("family", FAMILIES)
def test_dead_experts_are_never_asked_for(stage_of: Callable[[str], GateStage], family: str) -> None:
    stage = stage_of(family)
    dead = dict.fromkeys(stage[0].info.moe_layers, (0, 2))
    stage[0].mask_experts(dead)
    try:
        first_logits(stage)
    finally:
        stage[0].mask_experts({})

    asked = {expert for _, _, index in stage[1].calls for expert in index.flatten().tolist()}
    assert asked.isdisjoint({0, 2})


@pytest.mark.parametrize("family", FAMILIES)
def test_with_too_few_alive_the_missing_choices_are_dropped_slots(
    stage_of: Callable[[str], GateStage], family: str
) -> None:
    stage = stage_of(family)
    counts = stage[0].info.moe_layers
    stage[0].mask_experts({layer: tuple(range(1, count)) for layer, count in counts.items()})
    try:
        logits = first_logits(stage)
    finally:
        stage[0].mask_experts({})

    layer, _, index = stage[1].calls[0]
    assert set(index.flatten().tolist()) <= {0, counts[layer]}
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3"])
def test_experts_that_come_back_are_chosen_as_before(stage_of: Callable[[str], GateStage], family: str) -> None:
    stage = stage_of(family)
    untouched = first_logits(stage)
    stage[0].mask_experts(dict.fromkeys(stage[0].info.moe_layers, (0, 1, 2)))
    first_logits(stage)

    stage[0].mask_experts({})

    assert torch.equal(first_logits(stage), untouched)


def test_a_mask_of_an_unknown_expert_is_refused(stage_of: Callable[[str], GateStage]) -> None:
    with pytest.raises(BackboneError, match="layer 0 has no expert 8; ids go up to 7"):
        stage_of("mixtral")[0].mask_experts({0: (8,)})


def test_a_mask_of_a_layer_without_experts_is_refused(stage_of: Callable[[str], GateStage]) -> None:
    with pytest.raises(BackboneError, match="layer 9 has no routed experts"):
        stage_of("mixtral")[0].mask_experts({9: (0,)})
