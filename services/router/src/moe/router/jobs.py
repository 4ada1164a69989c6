"""The engine's view of a request while it waits and runs: its tokens, what it wants of a step, what it makes of it."""

from abc import ABC, abstractmethod

import numpy as np
from moe.models.text import Tokenizer
from moe.router.domain import Degradation, Ending, Finish, Generation, Piece, Scored, Scoring, Timings, TokenScore
from moe.router.outlet import Outlet
from moe.router.penalties import TokenHistory
from moe.router.sampling import SamplingRow
from moe.router.scheduler import Work
from moe.router.stops import AnswerText
from numpy.typing import NDArray


class Job(ABC):
    """Common to both kinds. tokens: those that are known. need: cache tokens it may come to hold."""

    def __init__(self, key: int, tokens: list[int], need: int, outlet: Outlet, arrived: float) -> None:
        self.key = key
        self.tokens = tokens
        self.need = need
        self.outlet = outlet
        self.arrived = arrived
        self.started: float | None = None
        self.stalled_since: float | None = None
        self.cancelled = False
        self.slots: NDArray[np.int64] | None = None
        self.degradations: dict[str, Degradation] = {}

    @property
    @abstractmethod
    def scored(self) -> bool:
        """Whether logits of every row are wanted."""

    @abstractmethod
    def wanted_rows(self, work: Work) -> range:
        """The rows of a work, counted within it, whose logits are wanted."""

    def count(self, slots: NDArray[np.int64], degradation: Degradation | None) -> None:
        """Adds what a step did. slots int64 [experts]."""
        self.slots = slots.copy() if self.slots is None else self.slots + slots
        if degradation is not None:
            before = self.degradations.get(degradation.kind)
            calls = degradation.layer_calls + (before.layer_calls if before else 0)
            self.degradations[degradation.kind] = Degradation(degradation.kind, calls, degradation.reason)


class GenerationJob(Job):
    """Draws one token after another. finish: why it ended, None while it goes on."""

    def __init__(
        self, key: int, request: Generation, outlet: Outlet, arrived: float, tokenizer: Tokenizer | None
    ) -> None:
        need = len(request.prompt) + request.max_tokens - 1
        super().__init__(key, list(request.prompt), need, outlet, arrived)
        self.request = request
        self.finish: Finish | None = None
        self.first_token: float | None = None
        self._tokenizer = tokenizer
        stream = tokenizer.stream(request.prompt[-1]) if tokenizer else None
        self._text = AnswerText(stream, request.stop)
        self._history = TokenHistory(request.prompt) if request.sampling.penalised else None
        self._stop_match = ""

    @property
    def scored(self) -> bool:
        """False: a prompt's logits are wanted at its end only."""
        return False

    @property
    def generated(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - len(self.request.prompt)

    def wanted_rows(self, work: Work) -> range:
        """The last row, once all known tokens are in the cache."""
        return range(work.count - 1, work.count) if work.last else range(0)

    def sampling_row(self) -> SamplingRow:
        """How the next token is drawn."""
        return SamplingRow(self.request.sampling, len(self.tokens), self._history)

    def add(self, score: TokenScore, now: float) -> Piece:
        """Takes the token that was drawn; the piece of the answer that it makes. May set `finish`."""
        self.first_token = now if self.first_token is None else self.first_token
        self.tokens.append(score.token)
        if self._history is not None:
            self._history.add(score.token)
        if score.token in self.request.stop_ids:
            text = self._end(Finish.STOP, self._name(score.token))
        else:
            text = self._text.push(score.token)
            if self._text.stop_match is not None:
                text += self._end(Finish.STOP, self._text.stop_match)
            elif self.generated == self.request.max_tokens:
                text += self._end(Finish.LENGTH, "")
        return Piece(text, (score,))

    def ending(self, now: float) -> Ending:
        """The end, once `finish` is set."""
        assert self.finish is not None, "the answer has not ended"
        slots = {} if self.slots is None else {e: n for e, n in enumerate(self.slots.tolist()) if n}
        first, started = self.first_token or now, self.started or now
        return Ending(
            finish=self.finish,
            stop_match=self._stop_match,
            prompt_tokens=len(self.request.prompt),
            generated_tokens=self.generated,
            timings=Timings(started - self.arrived, first - self.arrived, now - self.arrived),
            slots_by_expert=slots,
            degradations=tuple(self.degradations.values()),
            seed=self.request.sampling.seed,
        )

    def _end(self, finish: Finish, match: str) -> str:
        """Ends the answer; gives the text that was held back, which may still complete a stop text."""
        rest = self._text.finish()
        if self._text.stop_match is not None:
            finish, match = Finish.STOP, self._text.stop_match
        self.finish, self._stop_match = finish, match
        return rest

    def _name(self, token: int) -> str:
        return self._tokenizer.token(token) if self._tokenizer else str(token)


class ScoringJob(Job):
    """Collects the log-probability of every token but the first. The last token itself is never computed."""

    def __init__(self, key: int, request: Scoring, outlet: Outlet, arrived: float) -> None:
        known = list(request.prompt[:-1])
        super().__init__(key, known, len(known), outlet, arrived)
        self.request = request
        self._scores: list[TokenScore] = []

    @property
    def scored(self) -> bool:
        """True."""
        return True

    @property
    def finished(self) -> bool:
        """Whether all scores are there."""
        return len(self._scores) == len(self.tokens)

    def wanted_rows(self, work: Work) -> range:
        """All rows."""
        return range(work.count)

    def targets(self, work: Work) -> tuple[int, ...]:
        """The tokens that the work's rows predict."""
        return self.request.prompt[work.start + 1 : work.start + work.count + 1]

    def add(self, scores: list[TokenScore]) -> None:
        """Takes the scores of the next targets."""
        self._scores += scores

    def result(self) -> Scored:
        """All scores."""
        return Scored(tuple(self._scores))
