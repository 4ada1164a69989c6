"""The choice written out with Python's sort."""

import math

import torch
from torch import Tensor


def topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As moe.kernels.topk.topk."""
    chosen = [_best(row, k) for row in scores.tolist()]
    index = torch.tensor(chosen, dtype=torch.int64).reshape(len(scores), k)
    return scores.gather(1, index), index


def _best(row: list[float], k: int) -> list[int]:
    by_rank = sorted(range(len(row)), key=lambda expert: -math.inf if math.isnan(row[expert]) else -row[expert])
    nan_first = sorted(by_rank, key=lambda expert: not math.isnan(row[expert]))
    return nan_first[:k]
