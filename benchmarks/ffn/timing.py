"""Interleaved timing: A B C A B C …, so that whatever else the machine does hits all of them alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean, median

from torch import Tensor

from benchmarks.ffn.shapes import Routing

Run = Callable[[Routing], Tensor]
"""A layer: rows out, bfloat16 [tokens, hidden]."""
Timed = Callable[[Routing], float]
"""The same; the seconds that it took."""

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
"""cpu: processor time of all threads of this process together, which others on the machine hardly change."""


def timed(run: Run, clock: Clock) -> Timed:
    """By one of this process's clocks."""

    def call(routing: Routing) -> float:
        start = clock()
        run(routing)
        return clock() - start

    return call


@dataclass(frozen=True)
class Times:
    """median_s of a call; quarter_s: a quarter of the calls was faster, which tells more where others use the machine;
    experts: how many different ones a call touches, on average."""

    median_s: float
    quarter_s: float
    experts: float


def measure(
    runs: Mapping[str, Timed], routings: list[Routing], seconds: float, beside: Mapping[str, Timed] | None = None
) -> dict[str, Times]:
    """Calls every run with one routing after the other until each has had its seconds, three calls at least.

    A run whose first call takes all its seconds is not called again. beside: runs that take part in every turn.
    """
    always = beside or {}
    taken: dict[str, list[float]] = {name: [] for name in (*runs, *always)}
    touched = mean(len(set(experts.flatten().tolist())) for _, experts, _ in routings)
    place = 0
    while waiting := [name for name in runs if _unfinished(taken[name], seconds)]:
        routing = routings[place % len(routings)]
        place += 1
        for name in waiting:
            taken[name].append(runs[name](routing))
        for name, run in always.items():
            taken[name].append(run(routing))
    # The first call warms code and scratch memory up, and is the only one of what is slow.
    kept = {name: sorted(times[1:] or times) for name, times in taken.items()}
    return {name: Times(median(times), times[len(times) // 4], touched) for name, times in kept.items()}


def _unfinished(times: list[float], seconds: float) -> bool:
    if not times:
        return True
    if times[0] > seconds:
        return False
    return sum(times) < seconds or len(times) < 4
