"""What the router's parts say to each other about a request, free of messages, threads and tensors' devices.

A validated request comes out of `requests`, goes through the engine and leaves as `Piece`s and one `Ending`, or as a
`Scored`. Everything here is a plain value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class SamplingParameters:
    """How one request's tokens are drawn; bounds are checked where requests come in."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    @property
    def penalised(self) -> bool:
        """Whether tokens seen before change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True)
class Generation:
    """A request for a continuation.

    prompt: token ids, at least one. stop_ids: end tokens of the model included, unless they are to be ignored.
    logprobs: alternatives at each token; None for no log-probabilities at all.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParameters
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None


@dataclass(frozen=True)
class Scoring:
    """A request for the log-probability of each token of `prompt` (at least two) but the first."""

    prompt: tuple[int, ...]
    top: int = 0


@dataclass(frozen=True)
class TokenScore:
    """A token, ln of its probability (None when not asked for) and the most probable tokens with theirs, best first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """What a step adds to an answer: whole characters of text, and the tokens drawn."""

    text: str
    tokens: tuple[TokenScore, ...]


class Finish(Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class Degradation:
    """Something that made an answer differ from the undisturbed one, and in how many layer calls."""

    kind: str
    layer_calls: int
    reason: str


@dataclass(frozen=True)
class Timings:
    """Seconds from arrival to the first step, to the first token and to the end."""

    queued_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True)
class Ending:
    """The end of an answer. slots_by_expert: how often each expert was chosen for this request."""

    finish: Finish
    stop_match: str
    prompt_tokens: int
    generated_tokens: int
    timings: Timings
    slots_by_expert: Mapping[int, int]
    degradations: tuple[Degradation, ...]
    seed: int


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of all tokens but the first."""

    tokens: tuple[TokenScore, ...] = field(default=())
