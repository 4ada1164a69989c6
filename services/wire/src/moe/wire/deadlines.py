"""Deadlines: time.monotonic() seconds inside a process, time left in microseconds between processes."""

import math

_MICROSECONDS = 1_000_000
_LONGEST_US = 2**63 - 1


def to_timeout_us(deadline: float, now: float) -> int:
    """The time left, at least 1 µs as 0 means none; 0 for an infinite deadline."""
    if math.isinf(deadline):
        return 0
    return min(max(1, round((deadline - now) * _MICROSECONDS)), _LONGEST_US)


def from_timeout_us(timeout_us: int, now: float) -> float | None:
    """The deadline that a timeout from the wire means; None for none."""
    return now + timeout_us / _MICROSECONDS if timeout_us else None
