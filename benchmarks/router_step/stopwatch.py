"""Exclusive times of nested stages in one thread: what a stage spends outside the stages that it calls."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """A stage's own time and its number of calls, both a step."""

    name: str
    seconds: float
    calls: float


class Stopwatch:
    """Wraps functions. Off until `running`."""

    def __init__(self) -> None:
        self.running = False
        self._seconds: dict[str, float] = defaultdict(float)
        self._calls: dict[str, int] = defaultdict(int)
        self._inner: list[float] = []

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed as a stage."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.running:
                return function(*args, **kwargs)
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - begin
                self._seconds[name] += taken - self._inner.pop()
                self._calls[name] += 1
                if self._inner:
                    self._inner[-1] += taken

        return timed

    def stages(self, steps: int) -> list[Stage]:
        """What was seen, divided by the number of steps."""
        return [Stage(name, seconds / steps, self._calls[name] / steps) for name, seconds in self._seconds.items()]
