"""Penalties keep logits finite, however extreme the request."""

import numpy as np
import pytest
from moe.router.domain import SamplingParameters
from moe.router.penalties import TokenHistory, penalise


@pytest.mark.parametrize("penalty", [1e-38, 100.0])
def test_an_extreme_repetition_penalty_leaves_the_logits_finite(penalty):
    logits = np.array([[10.0, -10.0, 1.0]], dtype=np.float32)
    penalise(logits, [0], [SamplingParameters(repetition_penalty=penalty)], [TokenHistory([0, 1])])
    assert np.isfinite(logits).all()
