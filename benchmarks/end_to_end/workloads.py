"""The workloads, and what is read from the times at which tokens came. Pure: requests and times in, figures out.

W1: sixteen requests at once, 128 prompt and 64 new tokens. W2: one request. W3: Poisson arrivals of mixed lengths.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.end_to_end.protocol import Request
from benchmarks.figures import percentile

WORKLOADS = ("W1", "W2", "W3")
PROMPT, NEW, AT_ONCE = 128, 64, 16
_SHORTEST, _LONGEST = 16, 512
_NEW_SHORTEST, _NEW_LONGEST = 16, 64


@dataclass(frozen=True)
class Sent:
    """A request and when it has to be submitted, seconds after the workload's start."""

    request: Request
    after_s: float


@dataclass(frozen=True)
class Times:
    """Of one request, seconds of one clock. tokens: (when, how many there were by then), as told; ids: them all."""

    submitted: float
    tokens: tuple[tuple[float, int], ...]
    ids: tuple[int, ...] = ()

    @property
    def first_s(self) -> float:
        """To the first token."""
        return self.tokens[0][0] - self.submitted

    @property
    def per_token_s(self) -> float | None:
        """Mean after the first token; None where there is no other."""
        (start, before), (end, after) = self.tokens[0], self.tokens[-1]
        return (end - start) / (after - before) if after > before else None


def batch(vocabulary: int, *, count: int = AT_ONCE, prompt: int = PROMPT, new: int = NEW, seed: int = 0) -> list[Sent]:
    """W1, and W2 with a count of one."""
    draw = random.Random(seed)
    return [Sent(Request(number, _prompt(draw, prompt, vocabulary), new), 0.0) for number in range(count)]


def mixed(vocabulary: int, count: int, seed: int = 0) -> list[Sent]:
    """Requests of mixed lengths, all at once: the capacity is how many of them a second are done."""
    draw = random.Random(seed)
    return [Sent(_mixed(draw, number, vocabulary), 0.0) for number in range(count)]


def poisson(vocabulary: int, rate: float, count: int, seed: int = 0) -> list[Sent]:
    """W3: the mixed requests with exponential gaps, `rate` a second. Raises ValueError for a rate of 0 or less."""
    if not rate > 0:
        raise ValueError(f"rate: got {rate}, want above 0 requests a second")
    draw = random.Random(seed)
    sent: list[Sent] = []
    now = 0.0
    for number in range(count):
        sent.append(Sent(_mixed(draw, number, vocabulary), now))
        now += draw.expovariate(rate)
    return sent


def _mixed(draw: random.Random, number: int, vocabulary: int) -> Request:
    """Prompt lengths even in their logarithm, as most prompts are short; answers even."""
    length = round(math.exp(draw.uniform(math.log(_SHORTEST), math.log(_LONGEST))))
    return Request(number, _prompt(draw, length, vocabulary), draw.randint(_NEW_SHORTEST, _NEW_LONGEST))


def _prompt(draw: random.Random, length: int, vocabulary: int) -> list[int]:
    """Ids that are no special tokens."""
    return [draw.randrange(3, vocabulary) for _ in range(length)]


def throughput(times: Sequence[Times]) -> float:
    """Output tokens a second, from the first submission to the last token."""
    start = min(one.submitted for one in times)
    end = max(one.tokens[-1][0] for one in times)
    return sum(one.tokens[-1][1] for one in times) / (end - start)


def requests_per_second(times: Sequence[Times]) -> float:
    """Requests done a second, from the first submission to the last token."""
    return len(times) / (max(one.tokens[-1][0] for one in times) - min(one.submitted for one in times))


def single(times: Sequence[Times]) -> Mapping[str, float]:
    """W2's figures, in milliseconds: medians over requests that ran one after the other."""
    per_token = [one.per_token_s for one in times if one.per_token_s is not None]
    return {
        "first_ms": percentile([one.first_s for one in times], 50) * 1e3,
        "per_token_ms": percentile(per_token, 50) * 1e3,
    }


def under_load(times: Sequence[Times]) -> Mapping[str, float]:
    """W3's figures, in milliseconds."""
    first = [one.first_s * 1e3 for one in times]
    per_token = [one.per_token_s * 1e3 for one in times if one.per_token_s is not None]
    return {
        "first_p50_ms": percentile(first, 50),
        "first_p99_ms": percentile(first, 99),
        "per_token_p50_ms": percentile(per_token, 50),
        "per_token_p99_ms": percentile(per_token, 99),
    }
