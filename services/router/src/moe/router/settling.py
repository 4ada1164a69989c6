"""What a step's logits mean to its requests: tokens drawn, scores taken, pieces handed on."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from moe.router.jobs import GenerationJob, ScoringJob
from moe.router.logprobs import token_scores
from moe.router.packing import Step
from moe.router.sampling import sample
from moe.runtime.errors import MoeError, Unavailable
from numpy.typing import NDArray
from torch import Tensor


def settle(step: Step, logits: Tensor, counts: NDArray[np.int64], now: float) -> list[int]:
    """Gives every request that is served its part of the step; tokens drawn, by place.

    logits float32 [wanted, vocabulary]; counts int64 [works, experts]; now: time.monotonic().
    """
    drawn = [0] * len(step.works)
    generating: list[tuple[int, GenerationJob]] = []
    for place in step.served():
        job, rows = step.jobs[place], step.logit_rows[place]
        degradation = step.ledger.degradations.get(place)
        job.count(counts[place], degradation)
        if isinstance(job, ScoringJob) and degradation is not None:
            step.ledger.lose(np.array([place]), Unavailable(f"a score has to be exact: {degradation.reason}"))
        elif isinstance(job, ScoringJob):
            _score(step, place, job, logits[rows.start : rows.stop])
        elif isinstance(job, GenerationJob) and rows:
            generating.append((place, job))
    if generating:
        _generate(step, generating, logits, drawn, now)
    return drawn


def _score(step: Step, place: int, job: ScoringJob, logits: Tensor) -> None:
    targets = job.targets(step.works[place])
    scores = token_scores(logits, targets, [job.request.top] * len(targets))
    if any(score.logprob is None or math.isnan(score.logprob) for score in scores):
        step.ledger.lose(np.array([place]), _unusable())
    else:
        job.add(scores)


def _generate(
    step: Step, generating: Sequence[tuple[int, GenerationJob]], logits: Tensor, drawn: list[int], now: float
) -> None:
    wanted = [step.logit_rows[place].start for place, _ in generating]
    rows = logits if len(wanted) == len(logits) else logits[torch.tensor(wanted)]
    tops = [job.request.logprobs for _, job in generating]
    sampling = [job.sampling_row() for _, job in generating]
    scored = any(top is not None for top in tops)
    unpenalised = rows.clone() if scored and any(row.history is not None for row in sampling) else rows
    tokens = sample(rows, sampling)
    scores = token_scores(unpenalised, [token or 0 for token in tokens], tops)
    for (place, job), token, score in zip(generating, tokens, scores, strict=True):
        if token is None:
            step.ledger.lose(np.array([place]), _unusable())
        else:
            job.outlet.put(job.add(score, now))
            drawn[place] = 1


def _unusable() -> MoeError:
    return MoeError("the model's logits for this sequence are not finite; its weights or dtype can't carry the prompt")
