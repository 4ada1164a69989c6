"""How long to wait before dialling again: doubling up to a bound, from the start again after a stream that lasted."""

from dataclasses import dataclass


@dataclass
class Backoff:
    """first_s: the wait after the first failure. most_s: the longest. settled_s: a stream open so long was a success.

    A peer that accepts a stream and ends it at once does not start the waits over, or the two would spin.
    """

    first_s: float = 0.02
    most_s: float = 0.5
    settled_s: float = 1.0
    _failures: int = 0

    def next_wait_s(self, lasted_s: float) -> float:
        """The wait after an attempt whose stream was open for `lasted_s` seconds (0 when it never opened)."""
        if lasted_s >= self.settled_s:
            self._failures = 0
        wait = min(self.first_s * 2.0**self._failures, self.most_s)
        self._failures = min(self._failures + 1, 32)
        return wait
