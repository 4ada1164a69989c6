"""A clock that only a test moves; stands in for time.monotonic."""


class Clock:
    """`clock()` is the time in seconds; `clock.pass_s(2)` makes two seconds pass."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        return self._now_s

    def pass_s(self, seconds: float) -> float:
        if seconds < 0:
            raise ValueError(f"time does not go back, got {seconds} s")
        self._now_s += seconds
        return self._now_s
