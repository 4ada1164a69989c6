"""Log-probabilities of the model's own distribution, before penalties and sampling."""

from collections.abc import Sequence

import torch
from moe.router.domain import TokenScore
from torch import Tensor


def token_scores(logits: Tensor, tokens: Sequence[int], tops: Sequence[int | None]) -> list[TokenScore]:
    """Scores of one token a row of float32 logits [n, vocabulary].

    tops: how many alternatives each row wants; None for a row that wants no log-probability, which costs nothing.
    """
    scores = [TokenScore(token) for token in tokens]
    wanted = [i for i, top in enumerate(tops) if top is not None]
    if not wanted:
        return scores
    chosen = logits if len(wanted) == len(tokens) else logits[wanted]
    logprobs = torch.log_softmax(chosen, dim=-1)
    own = logprobs.gather(1, torch.tensor([[tokens[i]] for i in wanted])).flatten().tolist()
    best = _best(logprobs, max(tops[i] or 0 for i in wanted))
    for place, i in enumerate(wanted):
        scores[i] = TokenScore(tokens[i], own[place], best[place][: tops[i]])
    return scores


def _best(logprobs: Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` best of each row, equal ones by id; topk alone leaves the order of equal ones open."""
    count = min(count, logprobs.shape[-1])
    if count == 0:
        return [()] * len(logprobs)
    thresholds = logprobs.topk(count, dim=-1).values[:, -1]
    return [_best_of_row(row, threshold, count) for row, threshold in zip(logprobs, thresholds, strict=True)]


def _best_of_row(logprobs: Tensor, threshold: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    tokens = torch.nonzero(logprobs >= threshold).flatten()
    values, order = logprobs[tokens].sort(descending=True, stable=True)
    return tuple(zip(tokens[order[:count]].tolist(), values[:count].tolist(), strict=True))
