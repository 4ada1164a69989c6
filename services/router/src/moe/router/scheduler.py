"""Decides which tokens of which sequences make up the next step. Pure: no tensors, no clock, no threads.

A sequence is admitted first come, first served, when a slot is free and the cache has room for all it may come to
need, so that nothing that runs ever has to be thrown out. Every step holds one row of each sequence that decodes, and
up to a budget of prompt tokens on top; so a long prompt can't starve those that decode, nor they it.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from moe.runtime.errors import Overloaded


@dataclass(frozen=True)
class ScheduleLimits:
    """Bounds. slots: sequences at once. kv_tokens: cache tokens promised to them together.

    max_waiting: sequences that wait while no slot is free. prefill_tokens, score_tokens: prompt tokens of a step, of
    sequences that generate and of those that are scored (which cost a row of logits each).
    """

    slots: int
    kv_tokens: int
    max_waiting: int
    prefill_tokens: int
    score_tokens: int


@dataclass(frozen=True)
class Work:
    """One sequence's part of a step: `count` tokens from position `start` on.

    last: these are all tokens that the sequence has, so the next one can be drawn after them.
    """

    key: int
    slot: int
    start: int
    count: int
    last: bool


@dataclass
class _Entry:
    key: int
    known: int
    need: int
    scored: bool
    slot: int = -1
    done: int = 0
    paused: bool = field(default=False)


class Scheduler:
    """The waiting queue and the running sequences. Keys are the caller's."""

    def __init__(self, limits: ScheduleLimits) -> None:
        self._limits = limits
        self._waiting: OrderedDict[int, _Entry] = OrderedDict()
        self._running: OrderedDict[int, _Entry] = OrderedDict()
        self._free = deque(range(limits.slots))
        self._promised = 0

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    @property
    def kv_tokens_used(self) -> int:
        """Cache tokens promised to running sequences."""
        return self._promised

    def submit(self, key: int, tokens: int, need: int, *, scored: bool = False, step_s: float = 0.1) -> None:
        """Puts a sequence into the queue.

        tokens: known at the start, at least 1. need: cache tokens it may come to hold, at most kv_tokens.
        step_s: seconds a step takes, for the hint when to try again. Raises Overloaded when the queue is full.
        """
        if len(self._waiting) >= self._limits.max_waiting + len(self._free):
            raise Overloaded(
                f"{len(self._waiting)} requests are waiting; {self._limits.max_waiting} may (--max-waiting), and one "
                "for each free slot; try again later",
                retry_after_s=self._retry_after_s(step_s),
            )
        self._waiting[key] = _Entry(key, known=tokens, need=need, scored=scored)

    def remove(self, key: int) -> int | None:
        """Takes a sequence out; returns the slot it held, if any."""
        if self._waiting.pop(key, None) is not None:
            return None
        entry = self._running.pop(key, None)
        if entry is None:
            return None
        self._promised -= entry.need
        self._free.append(entry.slot)
        return entry.slot

    def pause(self, key: int, paused: bool) -> None:
        """A paused sequence keeps its slot and gets no rows."""
        if key in self._running:
            self._running[key].paused = paused

    def advance(self, work: Work, drawn: int = 0) -> None:
        """Notes that a work is done and that so many tokens were drawn after it."""
        entry = self._running[work.key]
        entry.done += work.count
        entry.known += drawn

    def plan(self) -> list[Work]:
        """The next step, rows that decode first, by slot; empty when there is nothing to do. Admits who fits."""
        self._admit()
        active = [e for e in self._running.values() if not e.paused and e.known > e.done]
        decoding = sorted((e for e in active if _decodes(e)), key=lambda e: e.slot)
        budgets = {False: self._limits.prefill_tokens, True: self._limits.score_tokens}
        works = [_work(entry, 1) for entry in decoding]
        for entry in active:
            if not _decodes(entry):
                count = min(entry.known - entry.done, budgets[entry.scored])
                budgets[entry.scored] -= count
                works += [_work(entry, count)] if count else []
        return works

    def _admit(self) -> None:
        while self._waiting and self._free:
            entry = next(iter(self._waiting.values()))
            if self._promised + entry.need > self._limits.kv_tokens:
                return
            del self._waiting[entry.key]
            entry.slot = self._free.popleft()
            self._promised += entry.need
            self._running[entry.key] = entry

    def _retry_after_s(self, step_s: float) -> float:
        """When the first running sequence is through at the latest, if each of its tokens takes a step."""
        steps = min((entry.need - entry.done for entry in self._running.values()), default=1)
        return max(0.1, steps * step_s)


def _decodes(entry: _Entry) -> bool:
    """Whether a single row is all it needs; a prompt's first token waits its turn like any other prompt's."""
    return entry.known - entry.done == 1 and entry.done > 0 and not entry.scored


def _work(entry: _Entry, count: int) -> Work:
    return Work(entry.key, entry.slot, entry.done, count, last=entry.done + count == entry.known)
