"""Log-probabilities: of the model's own distribution, only for rows that ask."""

import math

import pytest
import torch
from moe.router.domain import TokenScore
from moe.router.logprobs import token_scores

LOGITS = torch.tensor([[1.0, 2.0, 4.0, 2.0]] * 3).log()  # probabilities 1/9, 2/9, 4/9, 2/9


def test_a_row_gets_its_tokens_logprob_and_as_many_alternatives_as_it_asked_for() -> None:
    score = token_scores(LOGITS, [0, 1, 2], [0, 2, None])[1]
    found = [score.logprob, *(x for pair in score.top for x in pair)]
    assert found == pytest.approx([math.log(2 / 9), 2, math.log(4 / 9), 1, math.log(2 / 9)])


def test_a_row_that_asks_for_none_gets_none() -> None:
    assert token_scores(LOGITS, [0, 1, 2], [0, 2, None])[2] == TokenScore(2)


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    assert len(token_scores(LOGITS, [0, 1, 2], [None, 20, None])[1].top) == 4
