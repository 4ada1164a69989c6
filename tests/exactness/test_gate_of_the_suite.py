"""The suite's own tolerance catches what text would not show: each fault moves the logits far beyond it."""

import pytest
import torch
from support.exact_models import CHUNK, TOLERANCE, largest_difference
from support.mutations import MUTATIONS

FAR_BEYOND = 1000 * TOLERANCE
"""A fault must not hide near the tolerance."""

TOP_TWO = ("qwen2_moe", "mixtral", "deepseek_v3")
"""Families with weights that differ between a token's experts. (Llama4's one expert has its weight in its input.)"""


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.xdist_group(f)) for f in TOP_TWO])
@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_fault_in_the_experts_moves_the_logits_far_beyond_the_tolerance(family, fault, exact_models, bring_up):
    model = exact_models(family, torch.float32)
    _, distributed = bring_up(model, groups=2)
    distributed.experts = MUTATIONS[fault](distributed.experts, model.facts.moe_layers)

    got = distributed.logits(model.prompts, [len(p) for p in model.prompts], CHUNK)

    want = [rows[: len(p)] for rows, p in zip(model.logits, model.prompts, strict=True)]
    assert largest_difference(got, want) > FAR_BEYOND


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.xdist_group(f)) for f in ("qwen2_moe", "glm4_moe")]
)
def test_a_missing_shared_expert_moves_the_logits_far_beyond_the_tolerance(family, exact_models, bring_up):
    model = exact_models(family, torch.float32)
    _, distributed = bring_up(model, groups=2)
    silenced = _silence_shared_experts(distributed.backbone)

    got = distributed.logits(model.prompts, [len(p) for p in model.prompts], CHUNK)

    want = [rows[: len(p)] for rows, p in zip(model.logits, model.prompts, strict=True)]
    assert silenced
    assert largest_difference(got, want) > FAR_BEYOND


def _silence_shared_experts(backbone) -> int:
    names = [n for n, _ in backbone._model.named_parameters() if "shared_expert" in n and "down_proj" in n]
    with torch.no_grad():
        for name in names:
            backbone._model.get_parameter(name).zero_()
    return len(names)
