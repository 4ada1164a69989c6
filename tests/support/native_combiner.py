"""The native wire's combiner as moe.wire.combining.Combining, so that one table of tests holds for both executions."""

from collections.abc import Callable, Sequence

from moe.aggregator.combiner import Combiner
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
from moe.wire.port import MissingPart
from moe.wire.settings import CombinerLimits
from torch import Tensor


class NativeCombiner:
    """Owners are numbers in there; here they keep their names."""

    def __init__(self, limits: CombinerLimits | None = None) -> None:
        from moe_wire_native import Policy

        self._policy = Policy(limits or CombinerLimits())
        self._owners: list[str] = []

    def plan(self, owner: str, plan: CallPlan, now: float) -> Sequence[CombineEvent]:
        return self._events(self._policy.plan(self._number(owner), plan))

    def part(self, key: CallKey, part: int, rows: Tensor, now: float) -> Sequence[CombineEvent]:
        return self._events(self._policy.part(key, part, rows, now))

    def broken_part(self, key: CallKey, part: int, reason: str, now: float) -> Sequence[CombineEvent]:
        return self._events(self._policy.broken_part(key, part, reason))

    def give_up(self, key: CallKey, part: int, reason: str, now: float) -> Sequence[CombineEvent]:
        return self._events(self._policy.give_up(key, part, reason))

    def abandon(self, key: CallKey, now: float) -> Sequence[CombineEvent]:
        self._policy.abandon(key)
        return []

    def forget_owner(self, owner: str, now: float) -> Sequence[CombineEvent]:
        self._policy.forget_owner(self._number(owner))
        return []

    def source_lost(self, instance: str, now: float) -> Sequence[CombineEvent]:
        return self._events(self._policy.source_lost(instance))

    def expire(self, now: float) -> Sequence[CombineEvent]:
        return self._events(self._policy.expire(now))

    def next_deadline(self) -> float | None:
        return self._policy.next_deadline()

    def held_bytes(self) -> int:
        return self._policy.held_bytes()

    def stats(self) -> CombinerStats:
        return CombinerStats(*self._policy.figures())

    def _number(self, owner: str) -> int:
        if owner not in self._owners:
            self._owners.append(owner)
        return self._owners.index(owner)

    def _events(self, told: Sequence[tuple]) -> list[CombineEvent]:
        return [self._event(*each) for each in told]

    def _event(self, kind, number, key, memory, missing, part, text, deadline) -> CombineEvent:
        from moe.wire.native.memory import tensor_of

        owner = self._owners[number]
        if kind == "answered":
            parts = tuple(MissingPart(*each) for each in missing)
            return Answered(owner, CallKey(*key), tensor_of(memory), parts)
        if kind == "part_refused":
            return PartWasRefused(owner, CallKey(*key), part, text)
        if kind == "source_lost":
            return SourceWasLost(owner, text)
        assert kind == "rejected"
        return CallWasRejected(owner, CallKey(*key), text, deadline)


def combiners() -> list[Callable[..., Combiner | NativeCombiner]]:
    """Both executions of the policy; the native one where it is built."""
    try:
        import moe_wire_native  # noqa: F401
    except ImportError:
        return [Combiner]
    return [Combiner, NativeCombiner]
