"""An expert's queue of dispatches: pure, bounded in rows, joined by layer. Time is passed in; no lock of its own.

Rows of one layer from several routers make one batch: one pass over the layer's weights serves them all.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from moe.wire.port import Batch, ExpertLimits, QueueStats, WorkItem

_UNKNOWN_WAIT_S = 0.05
_SHORTEST_WAIT_S = 0.001
_LONGEST_WAIT_S = 5.0
_MEMORY = 0.8
"""Weight of what was known of the speed when a new batch is measured: about the last five batches count."""


@dataclass
class _Counts:
    overloaded: int = 0
    expired: int = 0
    invalid: int = 0
    dispatches: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True)
class _Waiting:
    """place: how many came before it. since: when it came."""

    place: int
    since: float
    item: WorkItem


def _is_expired(item: WorkItem, now: float) -> bool:
    return item.deadline is not None and item.deadline <= now


class ExpertQueue:
    """Waiting work items. Items of one layer keep their order; the layer whose first item waits longest is next."""

    def __init__(self, limits: ExpertLimits) -> None:
        self._limits = limits
        self._layers: dict[int, deque[_Waiting]] = {}
        self._arrivals = 0
        self._rows_per_s = 0.0
        self._counts = _Counts()
        self.queued_rows = 0

    def offer(self, item: WorkItem, now: float) -> float | None:
        """Takes an item and returns None, or returns after how many seconds to try again when the queue is full.

        An item that is larger than the bound is taken when nothing else waits.
        """
        rows = len(item.rows)
        if self.is_full_for(item):
            self._counts.overloaded += 1
            return self._wait_hint_s()
        self._layers.setdefault(item.layer, deque()).append(_Waiting(self._arrivals, now, item))
        self._arrivals += 1
        self.queued_rows += rows
        return None

    def is_full_for(self, item: WorkItem) -> bool:
        """Whether `offer` would turn the item away now."""
        return self.queued_rows > 0 and self.queued_rows + len(item.rows) > self._limits.max_queued_rows

    def drop_expired(self, now: float) -> list[WorkItem]:
        """Takes out and returns all items whose deadline has passed."""
        expired = self.remove(lambda item: _is_expired(item, now))
        self._counts.expired += len(expired)
        return expired

    def remove(self, unwanted: Callable[[WorkItem], bool]) -> list[WorkItem]:
        """Takes out and returns all items that are unwanted."""
        removed: list[WorkItem] = []
        for layer, waiting in list(self._layers.items()):
            gone = [each.item for each in waiting if unwanted(each.item)]
            if gone:
                removed += gone
                self._replace(layer, deque(each for each in waiting if not unwanted(each.item)))
        self.queued_rows -= sum(len(item.rows) for item in removed)
        return removed

    def take(self, now: float) -> tuple[Batch | None, list[WorkItem]]:
        """The next batch, and the items that were found expired on the way to it; no batch when nothing waits.

        A batch has items of the layer that waits longest, up to the bound of its rows; a larger item goes alone.
        """
        expired: list[WorkItem] = []
        while self._layers:
            layer = min(self._layers, key=lambda each: self._layers[each][0].place)
            items = self._take_from(layer, now, expired)
            if items:
                return Batch(layer, tuple(items)), expired
        return None, expired

    def _take_from(self, layer: int, now: float, expired: list[WorkItem]) -> list[WorkItem]:
        waiting = self._layers[layer]
        items: list[WorkItem] = []
        rows = 0
        while waiting:
            item = waiting[0].item
            if _is_expired(item, now):
                expired.append(item)
                self._counts.expired += 1
            elif items and rows + len(item.rows) > self._limits.max_batch_rows:
                break
            else:
                items.append(item)
                rows += len(item.rows)
                self._counts.dispatches += 1
                self._counts.waited_s += now - waiting[0].since
            waiting.popleft()
            self.queued_rows -= len(item.rows)
        self._replace(layer, waiting)
        return items

    def measured(self, rows: int, seconds: float) -> None:
        """A batch took so long: what the hint for overloaded routers is reckoned from."""
        speed = rows / max(seconds, 1e-6)
        self._rows_per_s = _MEMORY * self._rows_per_s + (1 - _MEMORY) * speed if self._rows_per_s else speed

    def count_invalid(self) -> None:
        """A dispatch was malformed."""
        self._counts.invalid += 1

    def stats(self) -> QueueStats:
        """The figures."""
        counts = self._counts
        return QueueStats(
            queued_rows=self.queued_rows,
            overloaded=counts.overloaded,
            expired=counts.expired,
            invalid=counts.invalid,
            dispatches=counts.dispatches,
            waited_s=counts.waited_s,
            rows_per_s=self._rows_per_s,
        )

    def _replace(self, layer: int, waiting: "deque[_Waiting]") -> None:
        if waiting:
            self._layers[layer] = waiting
        else:
            self._layers.pop(layer, None)

    def _wait_hint_s(self) -> float:
        """The time in which half of the queue is worked off."""
        if not self._rows_per_s:
            return _UNKNOWN_WAIT_S
        return min(max(self.queued_rows / 2 / self._rows_per_s, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)
