"""What the seams need of transformers, over every family with decorated experts: an upgrade that breaks it fails here.

The tables below say what this version of transformers gives; a family missing from them has gated silu experts.
"""

import pytest
import torch
from moe.kernels.ffn import FfnSpec
from moe.models.errors import UnsupportedModelError
from moe.models.families import EXACT_FAMILIES
from moe.models.formula import derive_ffn, prove
from moe.models.seams.experts_discovery import ExpertsModule, experts_per_token, find_experts
from support.decorated_families import build_smallest, decorated_families
from support.families import FAMILIES, make_model

GATED_SILU = FfnSpec("silu", gated=True, bias=False)
OTHER_FORMULAS = {
    "gpt_oss": FfnSpec("clamped_swiglu", gated=True, bias=True, limit=7.0, alpha=1.702),
    "minimax_m3_vl": FfnSpec("clamped_swiglu", gated=True, bias=False, limit=7.0, alpha=1.702),
    "nemotron_h": FfnSpec("relu2", gated=False, bias=False),
    "openai_privacy_filter": FfnSpec("clamped_swiglu", gated=True, bias=True, limit=7.0, alpha=1.702),
}
REFUSED = {
    "deepseek_v4": "computes an activation",
    "ernie4_5_vl_moe": "two sets of routed experts",
    "glm5_next": "computes an activation",
    "hy_v4": "computes an activation",
    "hy_v4_vl": "computes an activation",
    "inkling2": "computes an activation",
    "inkling2_loop": "computes an activation",
    "muse_spark": "has_post_expert_norm",
}
NO_DEFAULT_MODEL = {
    "deepseek_ocr2",
    "diffusion_gemma",
    "dots1",
    "gemma4",
    "hunyuan_v1_moe",
    "lfm2_moe",
    "qwen4_exp",
}
"""Families whose default configuration builds no model, or none with experts."""
NO_DEFAULT_TOPK = {"deepseek_v2"}

BUILT = [family for family in decorated_families() if family not in NO_DEFAULT_MODEL]
SERVED = [family for family in BUILT if family not in REFUSED]


def formula(family: str) -> FfnSpec:
    model, _ = build_smallest(family)
    (spec,) = {derive_ffn(experts) for experts in find_experts(model).values()}
    return spec


@pytest.mark.parametrize("family", SERVED)
def test_the_experts_formula_is_derived(family: str) -> None:
    assert formula(family) == OTHER_FORMULAS.get(family, GATED_SILU)


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_experts_that_no_formula_reproduces_are_refused_with_the_reason(family: str) -> None:
    with pytest.raises(UnsupportedModelError, match=REFUSED[family]):
        formula(family)


@pytest.mark.parametrize("family", [family for family in SERVED if family not in NO_DEFAULT_TOPK])
def test_the_experts_per_token_are_found(family: str) -> None:
    model, config = build_smallest(family)
    experts = find_experts(model)

    topk = experts_per_token(model, experts, config)

    assert 1 <= topk <= min(item.count for item in experts.values())


@pytest.mark.parametrize("family", SERVED)
def test_the_fused_parameters_are_the_known_ones(family: str) -> None:
    model, _ = build_smallest(family)

    found = {
        (tuple(sorted(name for name, _ in item.module.named_parameters())), tuple(sorted(item.parameters)))
        for item in find_experts(model).values()
    }

    assert all(own == expected for own, expected in found)


@pytest.mark.parametrize("family", sorted(NO_DEFAULT_MODEL))
def test_families_that_are_left_out_still_have_no_default_model(family: str) -> None:
    with pytest.raises(LookupError):
        build_smallest(family)


def test_the_tables_name_families_that_exist() -> None:
    assert {*OTHER_FORMULAS, *REFUSED, *NO_DEFAULT_MODEL} <= set(decorated_families())


def test_checkpoints_are_written_for_every_exact_family() -> None:
    assert set(FAMILIES) == set(EXACT_FAMILIES)


def experts_of(family: str) -> tuple[ExpertsModule, dict[str, torch.Tensor]]:
    (experts, *_) = find_experts(make_model(family)).values()
    return experts, {name: experts.module.get_parameter(name).data for name in experts.parameters}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_reproduces_the_familys_own_forward(family: str) -> None:
    experts, fused = experts_of(family)

    prove(experts, derive_ffn(experts), fused, experts.count - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_formula_is_not_proved(family: str) -> None:
    experts, fused = experts_of(family)
    wrong = FfnSpec("gelu", gated=True, bias=experts.biased)

    with pytest.raises(UnsupportedModelError, match="does not compute what its parts say"):
        prove(experts, wrong, fused, 0)


def swapped(fused: dict[str, torch.Tensor], up_name: str, dim: int) -> dict[str, torch.Tensor]:
    """The fused parameters with gate and up changing places."""
    return fused | {up_name: torch.cat(list(reversed(fused[up_name].chunk(2, dim=dim))), dim=dim)}


def test_a_gate_taken_for_the_up_rows_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    experts, fused = experts_of("mixtral")
    from moe.models import formula as module

    standard = module.standard_weights
    monkeypatch.setattr(module, "standard_weights", lambda e, f, n: standard(e, swapped(f, experts.up_name, dim=1), n))

    with pytest.raises(UnsupportedModelError, match="does not compute what its parts say"):
        prove(experts, derive_ffn(experts), fused, 0)


def test_a_neighbours_weights_are_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    experts, fused = experts_of("gpt_oss")
    from moe.models import formula as module

    standard = module.standard_weights
    monkeypatch.setattr(module, "standard_weights", lambda e, f, n: standard(e, f, n + 1))

    with pytest.raises(UnsupportedModelError, match="does not compute what its parts say"):
        prove(experts, derive_ffn(experts), fused, 0)


def test_a_dense_model_has_no_experts() -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )

    assert find_experts(transformers.LlamaForCausalLM(config)) == {}
