"""Perplexity of a causal language model over named sets of token rows."""

from math import exp

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS_AT_ONCE = 1


@torch.inference_mode()
def negative_log_likelihood(model: nn.Module, rows: Tensor) -> tuple[float, int]:
    """Sum in nats over the predicted tokens of [rows, length], and their number."""
    total, count = 0.0, 0
    for batch in torch.split(rows, ROWS_AT_ONCE):
        logits = model(batch, use_cache=False).logits[:, :-1].float()
        targets = batch[:, 1:]
        total += float(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
        count += targets.numel()
    return total, count


def perplexities(model: nn.Module, sets: dict[str, Tensor]) -> dict[str, float]:
    """Perplexity of every set and of all tokens together (`all`)."""
    sums = {name: negative_log_likelihood(model, rows) for name, rows in sets.items()}
    result = {name: round(exp(total / count), 3) for name, (total, count) in sums.items()}
    result["all"] = round(exp(sum(t for t, _ in sums.values()) / sum(c for _, c in sums.values())), 3)
    return result
