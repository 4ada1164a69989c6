"""Float32: the distributed logits equal transformers' with grouped_mm, for every family and arrangement."""

import pytest
import torch
from moe.operator.planner import Placement
from support.exact_models import CHUNK, TOLERANCE, largest_difference
from support.families import FAMILIES

ARRANGEMENTS = [
    pytest.param(1, 1, Placement.EMBEDDED, id="1-group-embedded"),
    pytest.param(2, 2, Placement.PROCESS, id="2-groups-2-replicas-process"),
    pytest.param(None, 1, Placement.SIDECAR, id="group-per-expert-sidecar"),
    pytest.param(2, 2, Placement.EMBEDDED, id="2-groups-2-replicas-embedded"),
]
"""Groups 1, 2 and one for each expert; replicas 1 and 2; the three placements of the aggregator."""


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.xdist_group(f)) for f in FAMILIES])
@pytest.mark.parametrize(("groups", "replicas", "placement"), ARRANGEMENTS)
def test_the_distributed_logits_equal_transformers(
    family, groups, replicas, placement, exact_models, bring_up, record_family
):
    model = exact_models(family, torch.float32)
    _, distributed = bring_up(model, groups=groups or model.facts.experts, replicas=replicas, placement=placement)

    got = distributed.logits(model.sequences, [len(p) for p in model.prompts], CHUNK)

    difference = largest_difference(got, model.logits)
    record_family(family, torch.float32, difference)
    assert difference <= TOLERANCE


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.xdist_group(f)) for f in FAMILIES])
def test_greedy_decoding_draws_the_tokens_that_transformers_draws(family, exact_models, bring_up):
    model = exact_models(family, torch.float32)
    _, distributed = bring_up(model, groups=2)

    got = distributed.logits(model.sequences, [len(p) for p in model.prompts], CHUNK)

    drawn = [rows[len(p) - 1 :].argmax(-1).tolist() for rows, p in zip(got, model.prompts, strict=True)]
    assert drawn == model.drawn
