"""`--deterministic`: a sequence's bits depend neither on what shares its steps, nor on chunks, nor on who died."""

import pytest
import torch
from support.processes import Role

FAMILIES = ("qwen2_moe", "deepseek_v3", "gpt_oss", "qwen3_next")
"""Plain attention, latent attention, sinks and windows with biased experts, linear attention."""


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.xdist_group(f)) for f in FAMILIES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_sequence_has_the_same_bits_alone_and_in_company_in_one_chunk_and_in_many(
    family, dtype, exact_models, bring_up
):
    model = exact_models(family, dtype)
    sequences = [s[: len(p) + 8] for s, p in zip(model.sequences, model.prompts, strict=True)]
    prompts = [len(p) for p in model.prompts]
    _, distributed = bring_up(model, groups=2, deterministic=True)

    company = distributed.logits(sequences, prompts, chunk=5)
    alone = distributed.logits(sequences[-1:], prompts[-1:], chunk=64)[0]

    assert torch.equal(alone, company[-1])


@pytest.mark.xdist_group("qwen2_moe")
def test_a_death_and_a_retry_leave_the_bits_as_they_are(exact_models, bring_up):
    model = exact_models("qwen2_moe", torch.float32)
    sequences = [s[: len(p) + 8] for s, p in zip(model.sequences, model.prompts, strict=True)]
    prompts = [len(p) for p in model.prompts]
    fleet, distributed = bring_up(model, groups=2, replicas=2, deterministic=True)
    undisturbed = distributed.logits(sequences, prompts, chunk=5)

    def kill(step: int) -> None:
        if step == 3:
            fleet.kill(fleet.names(Role.EXPERT)[0])

    disturbed = distributed.logits(sequences, prompts, chunk=5, before=kill)

    assert all(torch.equal(a, b) for a, b in zip(disturbed, undisturbed, strict=True))
