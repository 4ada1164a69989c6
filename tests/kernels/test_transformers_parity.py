"""The group's work (group, ffn, weigh, sum) against transformers' own Experts modules under `grouped_mm`.

It is the parity reference of the whole system: bfloat16 has to round at the same steps, so equality is to the bit;
in float32 a product over the same operands may differ in its last place, where a library sums in another order.
"""

import pytest
import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec, ffn
from moe.kernels.permute import group_slots
from moe.kernels.slot_sum import slot_sum
from torch import Tensor, nn
from transformers import GptOssConfig, MixtralConfig, NemotronHConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

HIDDEN, INNER, EXPERTS, TOPK, TOKENS = 48, 40, 5, 2, 23


def mixtral() -> tuple[nn.Module, FfnSpec]:
    config = MixtralConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS)
    return MixtralExperts(config), FfnSpec("silu", gated=True, bias=False)


def gpt_oss() -> tuple[nn.Module, FfnSpec]:
    config = GptOssConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS)
    module = GptOssExperts(config)
    return module, FfnSpec("clamped_swiglu", gated=True, bias=True, limit=module.limit, alpha=module.alpha)


def nemotron_h() -> tuple[nn.Module, FfnSpec]:
    config = NemotronHConfig(hidden_size=HIDDEN, moe_intermediate_size=INNER, n_routed_experts=EXPERTS)
    config.mlp_hidden_act = "relu2"
    return NemotronHExperts(config), FfnSpec("relu2", gated=False, bias=False)


FAMILIES = {"mixtral": mixtral, "gpt_oss": gpt_oss, "nemotron_h": nemotron_h}


def randomised(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    module.config._experts_implementation = "grouped_mm"
    return module.to(dtype).requires_grad_(False)


def expert_weights(module: nn.Module, expert: int) -> ExpertWeights:
    """One expert's tensors in the layout of moe.kernels: neither transposed nor interleaved."""
    up = module.gate_up_proj if module.has_gate else module.up_proj
    tensors = [up[expert], module.down_proj[expert]]
    if module.is_transposed:
        tensors = [tensor.T.contiguous() for tensor in tensors]
    biases: list[Tensor | None] = [None, None]
    if module.has_bias:
        biases = [module.gate_up_proj_bias[expert], module.down_proj_bias[expert]]
    if not module.is_concatenated:
        tensors[0] = torch.cat([tensors[0][::2], tensors[0][1::2]])
        biases[0] = None if biases[0] is None else torch.cat([biases[0][::2], biases[0][1::2]])
    return ExpertWeights(*tensors, *biases)


def ours(module: nn.Module, spec: FfnSpec, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    slot_rows = torch.arange(len(hidden)).repeat_interleave(index.shape[1])
    outputs = torch.empty(index.numel(), hidden.shape[1], dtype=hidden.dtype)
    for expert, places in group_slots(index.flatten()):
        outputs[places] = ffn(hidden[slot_rows[places]], expert_weights(module, expert), spec)
    return slot_sum(outputs, slot_rows, weights.flatten(), len(hidden), hidden.dtype)


def routed(weight_dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator) * 3
    scores = torch.rand(TOKENS, EXPERTS, generator=generator)
    weights, index = scores.softmax(dim=-1).topk(TOPK)
    return hidden, index, weights.to(weight_dtype)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_bfloat16_equals_grouped_mm_to_the_bit(family, weight_dtype):
    module, spec = family()
    module = randomised(module, torch.bfloat16)
    hidden, index, weights = routed(weight_dtype)
    got = ours(module, spec, hidden.bfloat16(), index, weights)
    assert torch.equal(got, module(hidden.bfloat16(), index, weights))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_float32_equals_grouped_mm_to_the_last_place(family):
    module, spec = family()
    module = randomised(module, torch.float32)
    hidden, index, weights = routed(torch.float32)
    got, want = ours(module, spec, hidden, index, weights), module(hidden, index, weights)
    # Sums of INNER terms in another order: sqrt(INNER) roundings of 2^-24 of the largest magnitude.
    assert (got - want).abs().max() <= INNER**0.5 * 2**-24 * want.abs().max()
