"""Which replica of a group a part goes to: the ready one with the least queued, and not one that just failed."""

import math
from collections.abc import Callable, Collection, Sequence

from moe.discovery.directory import ExpertReplica


def choose_replica(
    replicas: Sequence[ExpertReplica], queued_rows: Callable[[str], int], avoid: Collection[str], turn: int
) -> ExpertReplica | None:
    """The replica to send to; None when there is none.

    replicas: the group's ready ones. avoid: endpoints to take only if there are no others. turn: a counter, by which
    equally busy replicas take turns.
    """
    if len(replicas) <= 1:
        return replicas[0] if replicas else None
    usable = [replica for replica in replicas if replica.endpoint not in avoid] or list(replicas)
    queued = [queued_rows(replica.endpoint) for replica in usable]
    least = [replica for replica, rows in zip(usable, queued, strict=True) if rows == min(queued)]
    return least[turn % len(least)]


class Suspects:
    """Endpoints that failed a moment ago, so that the next layers don't run into the same dead replica each."""

    def __init__(self, hold_s: float, longest_s: float | None = None) -> None:
        """hold_s: how long a failure is remembered; twice as long each time it comes again soon, up to longest_s."""
        self._hold_s, self._longest_s = hold_s, longest_s or hold_s
        self._until: dict[str, float] = {}
        self._last: dict[str, tuple[float, float]] = {}

    def add(self, endpoint: str, now: float) -> None:
        """Notes a failure."""
        until, hold = self._last.get(endpoint, (-math.inf, self._hold_s))
        if now < until:
            hold = max(hold, until - now)
        else:
            hold = min(2 * hold, self._longest_s) if now < until + hold else self._hold_s
        self._last[endpoint] = (now + hold, hold)
        self._until[endpoint] = now + hold

    def current(self, now: float) -> Collection[str]:
        """Those that are to be avoided now."""
        if self._until:
            self._until = {endpoint: until for endpoint, until in self._until.items() if until > now}
        return self._until.keys()
