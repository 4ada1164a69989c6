"""Runs a combiner on a loop: passes the time in, wakes it when something is due, carries its events to their owners.

The aggregator's server and a router with a combiner inside both use it; used from the loop only.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from moe.wire.combining import CallKey, CallPlan, CombineEvent, Combining
from torch import Tensor

Sink = Callable[[CombineEvent], None]


class CombinerHost:
    """A combiner and the owners of its calls."""

    def __init__(self, combiner: Combining) -> None:
        self.combiner = combiner
        self._sinks: dict[str, Sink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def attach(self, owner: str, sink: Sink) -> None:
        """From now on `sink` gets the owner's events."""
        self._sinks[owner] = sink

    def detach(self, owner: str) -> None:
        """The owner is gone; its calls are abandoned."""
        self._sinks.pop(owner, None)
        self._carry(self.combiner.forget_owner(owner, time.monotonic()))

    def plan(self, owner: str, plan: CallPlan) -> None:
        """A layer call begins."""
        self._carry(self.combiner.plan(owner, plan, time.monotonic()))

    def part(self, key: CallKey, part: int, rows: Tensor) -> None:
        """A partial arrived."""
        self._carry(self.combiner.part(key, part, rows, time.monotonic()))

    def broken_part(self, key: CallKey, part: int, reason: str) -> None:
        """A partial arrived that can't be read."""
        self._carry(self.combiner.broken_part(key, part, reason, time.monotonic()))

    def give_up(self, key: CallKey, part: int, reason: str) -> None:
        """No replica will deliver a part."""
        self._carry(self.combiner.give_up(key, part, reason, time.monotonic()))

    def abandon(self, key: CallKey) -> None:
        """Nobody waits for a call."""
        self._carry(self.combiner.abandon(key, time.monotonic()))

    def source_lost(self, instance: str) -> None:
        """What an expert process sent lately may not have arrived."""
        self._carry(self.combiner.source_lost(instance, time.monotonic()))

    def close(self) -> None:
        """Stops the timer."""
        if self._timer:
            self._timer.cancel()

    def _carry(self, events: Sequence[CombineEvent]) -> None:
        for event in events:
            sink = self._sinks.get(event.owner)
            if sink:
                sink(event)
        self._reset_timer()

    def _reset_timer(self) -> None:
        """A timer that is due too early only looks again; it is moved only when something is due before it."""
        deadline = self.combiner.next_deadline()
        if deadline is None:
            return
        due = self._loop.time() + max(deadline - time.monotonic(), 0.0)
        if self._timer is None or self._timer.cancelled() or due < self._timer.when() - 1e-4:
            self.close()
            self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._carry(self.combiner.expire(time.monotonic()))
