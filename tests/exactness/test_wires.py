"""Over either wire the logits are transformers', and in deterministic mode of both the same to the bit.

The rest of the suite runs over the wire that `moe up` takes by itself: the native one where it is built.
"""

import pytest
import torch
from moe.operator.planner import Placement
from moe.wire.names import WIRES
from support.exact_models import CHUNK, TOLERANCE, largest_difference

FAMILIES = ["mixtral", "qwen2_moe"]
"""One without and one with a shared expert, which is computed while the rows are away."""


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.xdist_group(f)) for f in FAMILIES])
@pytest.mark.parametrize("placement", list(Placement))
def test_both_wires_give_the_bits_of_one_another(family, placement, exact_models, bring_up):
    pytest.importorskip("moe_wire_native", reason="the native wire is not built here")
    model = exact_models(family, torch.float32)
    got = []
    for wire in WIRES:
        _, distributed = bring_up(model, groups=2, placement=placement, deterministic=True, wire=wire)
        got.append(distributed.logits(model.sequences, [len(p) for p in model.prompts], CHUNK))

    assert largest_difference(got[0], model.logits) <= TOLERANCE
    assert all(torch.equal(one, other) for one, other in zip(*got, strict=True))
