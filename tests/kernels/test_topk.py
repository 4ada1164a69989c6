"""Choosing the k best, with a defined order among equals."""

import pytest
import torch
from moe.kernels.topk import topk

BACKENDS = ["reference", "torch"]


def draw(tokens: int, experts: int, dtype: torch.dtype) -> torch.Tensor:
    """Scores on a coarse grid, so that ties are common."""
    return (torch.randn(tokens, experts, generator=torch.Generator().manual_seed(3)) * 2).round().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "experts", "k"), [(0, 4, 2), (1, 1, 1), (9, 8, 8), (50, 60, 4), (7, 128, 8)])
def test_the_back_ends_agree(tokens, experts, k, dtype):
    scores = draw(tokens, experts, dtype)
    (values, index), (want_values, want_index) = (topk(scores, k, backend=name) for name in ("torch", "reference"))
    assert torch.equal(values, want_values)
    assert torch.equal(index, want_index)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_equal_scores_the_lowest_expert_comes_first(backend):
    assert topk(torch.tensor([[1.0, 2.0, 2.0, 1.0]]), 3, backend=backend)[1].tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nan_counts_as_the_greatest(backend):
    scores = torch.tensor([[1.0, float("inf"), float("nan"), 0.0]])
    assert topk(scores, 2, backend=backend)[1].tolist() == [[2, 1]]


@pytest.mark.parametrize("k", [0, 5])
def test_a_k_outside_the_experts_is_refused(k):
    with pytest.raises(ValueError, match=f"k: got {k}, want 1 to 4"):
        topk(torch.zeros(2, 4), k)
