"""Penalties on tokens that a request has seen: repetition, presence and frequency.

A history is kept only for requests that ask for a penalty, and costs as much as it has distinct tokens.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from moe.router.domain import SamplingParameters
from numpy.typing import NDArray

_LARGEST = np.finfo(np.float32).max


class TokenHistory:
    """The distinct tokens of prompt and output, with how often the output holds each."""

    def __init__(self, prompt: Iterable[int]) -> None:
        distinct = list(dict.fromkeys(prompt))
        self._place = {token: place for place, token in enumerate(distinct)}
        self._tokens = np.array(distinct, dtype=np.int64)
        self._counts = np.zeros(len(distinct), dtype=np.float32)

    def add(self, token: int) -> None:
        """Counts one more token of the output."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            room = max(64, place)
            self._tokens = np.concatenate([self._tokens, np.zeros(room, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.float32)])
        self._tokens[place] = token
        self._counts[place] += 1

    @property
    def tokens(self) -> NDArray[np.int64]:
        """int64 [distinct]."""
        return self._tokens[: len(self._place)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """float32 [distinct]: occurrences in the output; 0 for a token of the prompt alone."""
        return self._counts[: len(self._place)]


def penalise(
    logits: NDArray[np.float32],
    rows: Sequence[int],
    parameters: Sequence[SamplingParameters],
    histories: Sequence[TokenHistory],
) -> None:
    """Changes the given rows of logits [n, vocabulary] in place.

    Repetition divides a positive and multiplies a negative logit of every token seen (Keskar et al., CTRL, section
    4.1, in the form that transformers gives it); then presence and frequency subtract for tokens of the output.
    """
    sizes = [len(history.tokens) for history in histories]
    row = np.repeat(np.asarray(rows, dtype=np.int64), sizes)
    token = np.concatenate([history.tokens for history in histories])
    count = np.concatenate([history.counts for history in histories])
    repetition = _column([p.repetition_penalty for p in parameters], sizes)
    presence = _column([p.presence_penalty for p in parameters], sizes)
    frequency = _column([p.frequency_penalty for p in parameters], sizes)
    value = logits[row, token]
    with np.errstate(over="ignore"):  # a tiny penalty may push a finite logit beyond the range: it stays at its end
        changed = np.where(value > 0, value / repetition, value * repetition)
    value = np.where(np.isfinite(value), np.clip(changed, -_LARGEST, _LARGEST), value)
    logits[row, token] = value - presence * (count > 0) - frequency * count


def _column(values: Sequence[float], sizes: Sequence[int]) -> NDArray[np.float32]:
    return np.repeat(np.asarray(values, dtype=np.float32), sizes)
