"""What a spec and its weights refuse."""

import pytest
import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec


def gated(**changes: torch.Tensor | None) -> ExpertWeights:
    tensors: dict[str, torch.Tensor | None] = {"up": torch.zeros(8, 3), "down": torch.zeros(3, 4)}
    return ExpertWeights(**(tensors | changes))  # type: ignore[arg-type]


def test_an_unknown_activation_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="got 'swish', want one of silu, gelu"):
        FfnSpec("swish", gated=True, bias=False)  # type: ignore[arg-type]


def test_a_clamped_swiglu_needs_its_limit():
    with pytest.raises(ValueError, match="limit and alpha must be given"):
        FfnSpec("clamped_swiglu", gated=True, bias=True, alpha=1.7)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_clamped_swiglu_needs_a_limit_above_zero(limit):
    with pytest.raises(ValueError, match="limit must be above 0"):
        FfnSpec("clamped_swiglu", gated=True, bias=True, alpha=1.7, limit=limit)


def test_a_clamped_swiglu_is_gated():
    with pytest.raises(ValueError, match="gated must be true"):
        FfnSpec("clamped_swiglu", gated=False, bias=True, alpha=1.7, limit=7.0)


def test_a_limit_for_another_activation_is_refused():
    with pytest.raises(ValueError, match="belong to clamped_swiglu, not to silu"):
        FfnSpec("silu", gated=True, bias=False, limit=7.0)


def test_fitting_weights_pass():
    gated().check(FfnSpec("silu", gated=True, bias=False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"up": torch.zeros(4, 3)}, r"up: got shape \[4, 3\], want \[8, 3\]"),
        ({"up": torch.zeros(24)}, "must be matrices"),
        ({"down": torch.zeros(3, 4, dtype=torch.bfloat16)}, "down: got dtype torch.bfloat16, want torch.float32"),
        ({"up_bias": torch.zeros(8)}, "up_bias: given, but the spec has no bias"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        gated(**changes).check(FfnSpec("silu", gated=True, bias=False))


def test_a_missing_bias_is_refused_by_name():
    with pytest.raises(ValueError, match="down_bias: missing"):
        gated(up_bias=torch.zeros(8)).check(FfnSpec("silu", gated=True, bias=True))


def test_integer_weights_are_refused():
    weights = ExpertWeights(torch.zeros(8, 3, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"up: got dtype torch\.int64"):
        weights.check(FfnSpec("silu", gated=True, bias=False))
