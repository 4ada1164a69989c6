"""Picks the k best experts of each token: `topk(scores, k)`, with a defined order among equals."""

from moe.kernels.registry import AUTO, Registry
from moe.kernels.topk import reference, torch_backend
from torch import Tensor

backends = Registry("topk", "torch", {"reference": reference.topk, "torch": torch_backend.topk})


def topk(scores: Tensor, k: int, *, backend: str = AUTO) -> tuple[Tensor, Tensor]:
    """The k greatest of each row, greatest first; of equals the lowest expert id. NaN counts as the greatest.

    scores: floating [tokens, experts]; returns values [tokens, k] in the scores' dtype and indices int64 [tokens, k].
    Raises ValueError for a k outside 1 to experts, or another shape or dtype.
    """
    if scores.dim() != 2 or not scores.is_floating_point():
        raise ValueError(f"scores: got {scores.dtype} {list(scores.shape)}, want floats [tokens, experts]")
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k: got {k}, want 1 to {scores.shape[1]}")
    return backends.get(backend)(scores, k)


__all__ = ["backends", "topk"]
