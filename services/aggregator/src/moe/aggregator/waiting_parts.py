"""Parts without an open call: those that came before their plan, and the memory of calls that are closed.

Both are bounded. What is dropped is remembered by number, so that a plan which comes (again) later can have it resent.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from moe.wire.combining import CallKey
from torch import Tensor

_BYTES_PER_PART = 512
_MOST_DROPPED_PARTS = 4096


def _cost(rows: Tensor) -> int:
    """What a partial takes; an empty one takes something too, or any number of them would be free."""
    return rows.nbytes + _BYTES_PER_PART


@dataclass(eq=False)
class _EarlyCall:
    since: float
    rows: dict[int, Tensor] = field(default_factory=dict)

    def nbytes(self) -> int:
        return sum(_cost(rows) for rows in self.rows.values())


class EarlyParts:
    """Partials whose plan has not come. max_bytes: of all of them. seconds: how long the first of a call waits."""

    def __init__(self, max_bytes: int, seconds: float) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._calls: OrderedDict[CallKey, _EarlyCall] = OrderedDict()
        self.nbytes = 0

    def has(self, key: CallKey, part: int) -> bool:
        """Whether this part waits already."""
        return key in self._calls and part in self._calls[key].rows

    def add(self, key: CallKey, part: int, rows: Tensor, now: float) -> list[tuple[CallKey, int]]:
        """Keeps a partial; returns the parts, oldest calls first, that had to be dropped to make room."""
        self._calls.setdefault(key, _EarlyCall(now)).rows[part] = rows
        self.nbytes += _cost(rows)
        dropped: list[tuple[CallKey, int]] = []
        while self.nbytes > self._max_bytes:
            dropped += self._drop_oldest()
        return dropped

    def take(self, key: CallKey) -> dict[int, Tensor]:
        """The partials of a call whose plan has come, by part."""
        call = self._calls.pop(key, None)
        if call is None:
            return {}
        self.nbytes -= call.nbytes()
        return call.rows

    def expire(self, now: float) -> list[tuple[CallKey, int]]:
        """Drops and returns the parts of calls that have waited too long."""
        dropped: list[tuple[CallKey, int]] = []
        while self._calls and self.next_deadline() <= now:
            dropped += self._drop_oldest()
        return dropped

    def next_deadline(self) -> float:
        """When the oldest call has waited too long; infinity when none waits."""
        return next(iter(self._calls.values())).since + self._seconds if self._calls else float("inf")

    def _drop_oldest(self) -> list[tuple[CallKey, int]]:
        key, call = self._calls.popitem(last=False)
        self.nbytes -= call.nbytes()
        return [(key, part) for part in call.rows]


class ClosedCalls:
    """The newest `capacity` calls that have ended, each with the parts that came, and were dropped, since."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._dropped: OrderedDict[CallKey, set[int]] = OrderedDict()

    def close(self, key: CallKey) -> None:
        """Remembers that a call has ended."""
        self._dropped[key] = set()
        self._dropped.move_to_end(key)
        while len(self._dropped) > self._capacity:
            self._dropped.popitem(last=False)

    def knows(self, key: CallKey) -> bool:
        """Whether the call is remembered as ended."""
        return key in self._dropped

    def drop(self, key: CallKey, part: int) -> None:
        """Remembers a part that was dropped."""
        if key not in self._dropped:
            self.close(key)
        if len(self._dropped[key]) < _MOST_DROPPED_PARTS:
            self._dropped[key].add(part)

    def reopen(self, key: CallKey) -> set[int]:
        """Forgets that the call has ended; returns the parts that were dropped since."""
        return self._dropped.pop(key, set())
