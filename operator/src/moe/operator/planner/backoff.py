"""How long a crashed process waits before it is started again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Exponential, bounded, without jitter, as the restarts of one machine don't meet in one place.

    initial_s: before the first restart; short, since a request may be waiting for it. limit_s: the longest wait.
    steady_s: a process that lived that long is healthy and starts again at the beginning.
    looping_after: crashes in a row from which on it is called a crash loop.
    """

    initial_s: float = 0.25
    factor: float = 2.0
    limit_s: float = 30.0
    steady_s: float = 60.0
    looping_after: int = 5

    def delay_s(self, crashes: int) -> float:
        """Seconds to wait after the `crashes`-th crash in a row, the first being 1; 0 for none."""
        if crashes < 1:
            return 0.0
        delay = self.initial_s
        for _ in range(crashes - 1):
            delay = min(delay * self.factor, self.limit_s)
            if delay == self.limit_s:
                break
        return min(delay, self.limit_s)

    def crashes_in_a_row(self, before: int, lived_s: float) -> int:
        """Crashes in a row after one more, of a process that lived `lived_s` seconds."""
        return 1 if lived_s >= self.steady_s else before + 1

    def looping(self, crashes: int) -> bool:
        """Whether that many crashes in a row are a crash loop."""
        return crashes >= self.looping_after
