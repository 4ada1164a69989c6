"""The next token of every row: what transformers' own warpers keep, ties, frequencies, independence of rows."""

from collections import Counter

import pytest
import torch
from moe.router.domain import SamplingParameters
from moe.router.penalties import TokenHistory
from moe.router.sampling import SamplingRow, sample
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

POSITIONS = 3000


def logits_of(vocabulary: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def drawn(
    logits: Tensor, count: int = POSITIONS, history: TokenHistory | None = None, **settings: float
) -> Counter[int]:
    parameters = SamplingParameters(**{"temperature": 1.0, "seed": 11, **settings})
    rows = [SamplingRow(parameters, position, history) for position in range(count)]
    return Counter(sample(logits.repeat(count, 1), rows))


def expected(logits: Tensor, *warpers: object, seen: list[int] | None = None) -> Tensor:
    return LogitsProcessorList(list(warpers))(torch.tensor([seen or [0]]), logits[None].clone())[0].softmax(-1)


def distance(counts: Counter[int], probabilities: Tensor) -> float:
    """Total variation between what was drawn and what should have been."""
    total = sum(counts.values())
    return 0.5 * sum(abs(counts[i] / total - p) for i, p in enumerate(probabilities.tolist()))


@pytest.mark.parametrize(
    ("settings", "warpers"),
    [
        ({}, []),
        ({"temperature": 0.5}, [TemperatureLogitsWarper(0.5)]),
        ({"top_k": 4}, [TopKLogitsWarper(4)]),
        ({"top_p": 0.7}, [TopPLogitsWarper(0.7)]),
        ({"min_p": 0.2}, [MinPLogitsWarper(0.2)]),
        ({"top_k": 9, "top_p": 0.8, "min_p": 0.1}, [TopKLogitsWarper(9), TopPLogitsWarper(0.8), MinPLogitsWarper(0.1)]),
        ({"temperature": 2.0, "top_p": 0.5}, [TemperatureLogitsWarper(2.0), TopPLogitsWarper(0.5)]),
        ({"top_k": 1000}, []),
        ({"top_p": 1e-6}, [TopKLogitsWarper(1)]),
        ({"min_p": 1.0}, [TopKLogitsWarper(1)]),
    ],
)
def test_tokens_come_as_often_as_transformers_would_have_it(settings: dict[str, float], warpers: list[object]) -> None:
    logits = logits_of(24)
    probabilities = expected(logits, *warpers)
    counts = drawn(logits, **settings)
    # With 24 outcomes and 3000 draws the mean distance is below 0.03 (half the sum of 24 standard deviations).
    kept = set(probabilities.nonzero().flatten().tolist())
    assert (set(counts) - kept, distance(counts, probabilities) < 0.04) == (set(), True)


def test_top_p_breaks_ties_by_the_lowest_id() -> None:
    # 400 equal logits: half the mass is the 200 lowest ids.
    assert max(drawn(torch.zeros(400), top_p=0.5)) == 199


def test_top_k_breaks_ties_by_the_lowest_id() -> None:
    assert set(drawn(torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0]), count=200, top_k=3, temperature=5.0)) == {0, 1, 2}


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert drawn(torch.tensor([0.0, 3.0, 3.0, 1.0]), temperature=0.0) == Counter({1: POSITIONS})


def test_a_row_draws_the_same_token_alone_and_among_others() -> None:
    rows = [
        SamplingRow(SamplingParameters(), 5),
        SamplingRow(SamplingParameters(temperature=1.0, seed=3), 9),
        SamplingRow(SamplingParameters(temperature=0.7, top_p=0.9, top_k=40, seed=2**64 - 1), 17),
        SamplingRow(SamplingParameters(temperature=1.3, repetition_penalty=1.5, seed=4), 2, TokenHistory([1, 2, 3])),
        SamplingRow(SamplingParameters(temperature=1.3, min_p=0.05, top_p=0.99, seed=5), 2),
    ]
    logits = torch.stack([logits_of(997, seed, spread=1.0) for seed in range(len(rows))])
    alone = [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]
    assert sample(logits.clone(), rows) == alone


def test_the_draw_changes_with_the_position_and_with_the_seed() -> None:
    logits = torch.zeros(3, 10_000)
    tokens = sample(
        logits, [SamplingRow(SamplingParameters(temperature=1.0, seed=s), p) for s, p in [(1, 1), (1, 2), (2, 1)]]
    )
    assert len(set(tokens)) == 3


@pytest.mark.parametrize("temperature", [1e-40, 1e-6, 100.0])
def test_extreme_temperatures_draw_a_token_of_finite_logit(temperature: float) -> None:
    logits = torch.tensor([-torch.inf, 1e4, 2e4, -torch.inf])
    assert set(drawn(logits, count=50, temperature=temperature)) == {2}


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits, seen = logits_of(24), [3, 5, 5, 7, 23]
    counts = drawn(logits, history=TokenHistory(seen), repetition_penalty=3.0)
    assert distance(counts, expected(logits, RepetitionPenaltyLogitsProcessor(3.0), seen=seen)) < 0.04


def test_presence_and_frequency_count_the_output_and_not_the_prompt() -> None:
    history = TokenHistory([0, 1])
    for token in [1, 2, 2, 2]:
        history.add(token)
    logits = torch.tensor([[10.0, 10.0, 10.0, 10.0]])
    parameters = SamplingParameters(presence_penalty=1.0, frequency_penalty=0.25)
    sample(logits, [SamplingRow(parameters, 4, history)])
    assert logits.tolist() == [[10.0, 8.75, 8.25, 10.0]]


def test_a_long_history_keeps_every_distinct_token() -> None:
    history = TokenHistory(range(3))
    for token in range(1000):
        history.add(token)
    assert (history.tokens.tolist(), history.counts.tolist()) == (list(range(1000)), [1.0] * 1000)


def test_rows_without_a_usable_logit_get_no_token() -> None:
    nan, plus = torch.tensor([0.0, torch.nan, 1, 2]), torch.tensor([0.0, torch.inf, 1, 2])
    minus, some_minus = torch.full((4,), -torch.inf), torch.tensor([-torch.inf, 0, 0, 0])
    rows = [SamplingRow(SamplingParameters(temperature=t), 0) for t in (0, 1, 0, 0)]
    assert sample(torch.stack([nan, plus, minus, some_minus]), rows) == [None, None, None, 1]
