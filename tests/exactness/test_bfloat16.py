"""Bfloat16: as near to the single-process model as the order of additions allows; docs/decisions/0004 derives it."""

import pytest
import torch
from moe.models.backbone import load_backbone
from support.distributed import local_logits
from support.families import FAMILIES
from support.local_experts import LocalExperts
from support.noise import (
    CheckedExperts,
    NoisyExperts,
    Recorder,
    largest_difference_before,
    rows_before_a_flip,
    whole_prompts,
)

SEEDS = (1, 2, 3)
GROUPED = [pytest.param(f, marks=pytest.mark.xdist_group(f)) for f in FAMILIES]


@pytest.mark.parametrize("family", GROUPED)
def test_every_layer_call_keeps_the_derived_bound(family, exact_models, bring_up):
    model = exact_models(family, torch.bfloat16)
    _, distributed = bring_up(model, groups=4)
    checked = distributed.experts = CheckedExperts(distributed.experts, LocalExperts(model.reference))

    distributed.logits(model.prompts, [len(p) for p in model.prompts], 64)

    assert checked.calls
    assert checked.worst <= 1


@pytest.mark.parametrize("family", GROUPED)
def test_the_logits_move_no_more_than_the_models_own_sensitivity(family, exact_models, bring_up, record_family):
    model = exact_models(family, torch.bfloat16)
    lengths = [len(p) for p in model.prompts]
    _, distributed = bring_up(model, groups=4)
    local = LocalExperts(model.reference)
    plain = Recorder(local)
    want = _single_process(model, plain)

    ours = distributed.experts = Recorder(distributed.experts)
    got = whole_prompts(distributed.logits, model.prompts)

    kept = rows_before_a_flip(ours, plain, lengths)
    assert sum(kept) >= sum(lengths) / 2, "too many routing flips to say anything: choose other prompts"
    noise = max(_noise(model, local, plain, want, seed) for seed in SEEDS)
    difference = largest_difference_before(got, want, kept)
    record_family(family, torch.bfloat16, difference / (2 * noise))
    assert difference <= 2 * noise


def _single_process(model, experts):
    backbone = load_backbone(model.package)
    return whole_prompts(lambda s, p, chunk: local_logits(backbone, experts, s, p, chunk), model.prompts)


def _noise(model, local, plain, want, seed):
    """The largest difference that noise of the bound's size makes, before it turns a choice of experts."""
    noisy = Recorder(NoisyExperts(local, seed))
    moved = _single_process(model, noisy)
    kept = rows_before_a_flip(noisy, plain, [len(p) for p in model.prompts])
    return largest_difference_before(moved, want, kept)
