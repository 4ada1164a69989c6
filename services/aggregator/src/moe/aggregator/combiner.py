"""The combiner: a pure state machine from plans and parts to answers.

It is what the aggregator service and the router's embedded placement both run; they feed it through moe.wire and carry
its events. No I/O, no clock, no thread: `now` is passed in. Parts may come before their plan, twice, late or broken.
The first good one of a part wins and the sum is taken in ascending part order, so its bits don't depend on arrival.
What a missing part means to a request is the router's.
"""

from moe.aggregator.answer import answer_rows
from moe.aggregator.checks import FLOATS, part_fault, plan_fault, same_plan
from moe.aggregator.open_call import OpenCall
from moe.aggregator.tally import Tally
from moe.aggregator.waiting_parts import ClosedCalls, EarlyParts
from moe.wire.combining import (
    Answered,
    CallKey,
    CallPlan,
    CallWasRejected,
    CombineEvent,
    CombinerStats,
    PartWasRefused,
    SourceWasLost,
)
from moe.wire.settings import CombinerLimits
from torch import Tensor

DROPPED = "came when its layer call was not open and was dropped; send it again"


class Combiner:
    """See moe.wire.combining.Combining, which this implements."""

    def __init__(self, limits: CombinerLimits | None = None) -> None:
        self._limits = limits or CombinerLimits()
        self._open: dict[CallKey, OpenCall] = {}
        self._early = EarlyParts(self._limits.early_bytes, self._limits.early_seconds)
        self._closed = ClosedCalls(self._limits.closed_calls)
        self._held_bytes = 0
        self._tally = Tally()

    def plan(self, owner: str, plan: CallPlan, now: float) -> list[CombineEvent]:
        """Opens a call and takes the parts that came before; the same plan again only moves it to its new owner."""
        known = self._open.get(plan.key)
        if known is not None:
            return self._plan_again(owner, known, plan)
        fault = plan_fault(plan, self._limits) or self._crowded()
        if fault is not None:
            return self._reject(owner, plan.key, fault)
        call = self._open[plan.key] = OpenCall(owner, plan)
        again = sorted(self._closed.reopen(plan.key) & call.planned.keys())
        events: list[CombineEvent] = [PartWasRefused(owner, plan.key, part, DROPPED) for part in again]
        for part, rows in self._early.take(plan.key).items():
            events += self._accept(call, part, rows)
        return events + self._answer_if_settled(call)

    def part(self, key: CallKey, part: int, rows: Tensor, now: float) -> list[CombineEvent]:
        """Takes a partial [rows, hidden]; drops it when it was there before or its call is closed."""
        call = self._open.get(key)
        if call is None:
            self._keep_or_drop(key, part, rows, now)
            return []
        return self._accept(call, part, rows) + self._answer_if_settled(call)

    def broken_part(self, key: CallKey, part: int, reason: str, now: float) -> list[CombineEvent]:
        """Refuses a partial that could not be read."""
        call = self._open.get(key)
        if call is not None:
            return [self._refuse(call, part, reason)] if part not in call.rows else []
        self._tally.refused += 1
        self._closed.drop(key, part)
        return []

    def give_up(self, key: CallKey, part: int, reason: str, now: float) -> list[CombineEvent]:
        """Stops waiting for a part, where the policy allows; under `wait` it is the reason told at the deadline."""
        call = self._open.get(key)
        if call is None or part in call.rows or part not in call.planned:
            return []
        call.given_up[part] = reason
        return self._answer_if_settled(call)

    def abandon(self, key: CallKey, now: float) -> list[CombineEvent]:
        """Forgets a call; nobody is told."""
        if key in self._open:
            self._close(self._open[key])
        return []

    def forget_owner(self, owner: str, now: float) -> list[CombineEvent]:
        """Abandons all calls of an owner that is gone."""
        for call in [call for call in self._open.values() if call.owner == owner]:
            self._close(call)
        return []

    def source_lost(self, instance: str, now: float) -> list[CombineEvent]:
        """Tells every owner that waits for a part."""
        owners = dict.fromkeys(call.owner for call in self._open.values())
        return [SourceWasLost(owner, instance) for owner in owners]

    def expire(self, now: float) -> list[CombineEvent]:
        """Answers the calls whose deadline has come and drops the parts whose plan has not."""
        for key, part in self._early.expire(now):
            self._closed.drop(key, part)
        due = [call for call in self._open.values() if call.plan.deadline is not None and call.plan.deadline <= now]
        return [self._answer(call) for call in due]

    def next_deadline(self) -> float | None:
        """The earliest of the calls' deadlines and the early parts' ends."""
        deadlines = [call.plan.deadline for call in self._open.values() if call.plan.deadline is not None]
        earliest = min([*deadlines, self._early.next_deadline()])
        return None if earliest == float("inf") else earliest

    def stats(self) -> CombinerStats:
        """The figures."""
        return self._tally.stats(len(self._open))

    def held_bytes(self) -> int:
        """Bytes of all partials that wait."""
        return self._held_bytes + self._early.nbytes

    def _plan_again(self, owner: str, call: OpenCall, plan: CallPlan) -> list[CombineEvent]:
        if not same_plan(call.plan, plan):
            return self._reject(owner, plan.key, f"another plan is open for call {plan.key.call_id:#x}; take a new id")
        call.owner, call.plan = owner, plan
        return []

    def _crowded(self) -> str | None:
        if len(self._open) < self._limits.open_calls:
            return None
        return f"{len(self._open)} layer calls are open, the bound; add an aggregator"

    def _reject(self, owner: str, key: CallKey, message: str) -> list[CombineEvent]:
        self._tally.failed += 1
        return [CallWasRejected(owner, key, f"layer {key.layer}: {message}")]

    def _accept(self, call: OpenCall, part: int, rows: Tensor) -> list[CombineEvent]:
        if part in call.rows:
            self._tally.duplicates += 1
            return []
        fault = self._fault(call, part, rows)
        if fault is not None:
            return [self._refuse(call, part, fault)]
        call.rows[part] = rows
        self._held_bytes += rows.nbytes
        return []

    def _fault(self, call: OpenCall, part: int, rows: Tensor) -> str | None:
        planned = call.planned.get(part)
        if planned is None:
            return f"part {part} is not in the plan, which has {sorted(call.planned)}"
        held, bound = self.held_bytes() + rows.nbytes, self._limits.held_bytes
        return part_fault(rows, planned, call.plan) or (
            f"waiting parts would take {held} bytes, the bound is {bound}; add an aggregator" if held > bound else None
        )

    def _refuse(self, call: OpenCall, part: int, reason: str) -> CombineEvent:
        self._tally.refused += 1
        if part in call.planned:
            call.refusals[part] = reason
        return PartWasRefused(call.owner, call.plan.key, part, reason)

    def _keep_or_drop(self, key: CallKey, part: int, rows: Tensor, now: float) -> None:
        """A part without an open call: late or twice, or ahead of its plan."""
        if self._closed.knows(key) or self._early.has(key, part):
            self._tally.duplicates += 1
            if self._closed.knows(key):
                self._closed.drop(key, part)
            return
        if rows.dtype not in FLOATS:
            self._tally.refused += 1
            self._closed.drop(key, part)
            return
        for dropped_key, dropped_part in self._early.add(key, part, rows, now):
            self._tally.refused += 1
            self._closed.drop(dropped_key, dropped_part)

    def _answer_if_settled(self, call: OpenCall) -> list[CombineEvent]:
        return [self._answer(call)] if call.is_settled() else []

    def _answer(self, call: OpenCall) -> CombineEvent:
        held_before = call.held_bytes()
        rows = answer_rows(call)
        missing = call.missing()
        self._close(call, held_before)
        self._tally.combined += 1
        self._tally.missing += len(missing)
        return Answered(call.owner, call.plan.key, rows, missing)

    def _close(self, call: OpenCall, held: int | None = None) -> None:
        """held: the bytes that were counted for the call, where the answer has taken parts out since."""
        del self._open[call.plan.key]
        self._held_bytes -= call.held_bytes() if held is None else held
        self._closed.close(call.plan.key)
