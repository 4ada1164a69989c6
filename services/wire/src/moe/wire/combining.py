"""What a combiner is to the wire: plans and parts go in, events for the routers come out.

The state machine itself is moe.aggregator.combiner; it lies above this part, so the wire knows it by this protocol. It
does no I/O and reads no clock: `now` is time.monotonic() seconds, passed in. An *owner* is one router's stream (or the
router that a combiner is embedded in); each event names the owner that it is for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from moe.wire.port import MissingPart, MissingPolicy
from torch import Tensor, dtype


class CallKey(NamedTuple):
    """What a layer call is known by. call_id is unique over all routers."""

    call_id: int
    layer: int


@dataclass(frozen=True, eq=False)
class PlannedPart:
    """One part of a plan.

    token_index int32 [rows], strictly increasing: the answer's row that each row of the partial is added to.
    row_weights float32 [rows]: the row's routing weights in this part, summed; only `renormalise` needs it.
    """

    part: int
    token_index: Tensor
    row_weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class CallPlan:
    """What a layer call consists of: the answer is [tokens, hidden] in `dtype`; parts ascend by their index.

    deadline: time.monotonic() seconds, None for none.
    """

    key: CallKey
    tokens: int
    hidden: int
    dtype: dtype
    policy: MissingPolicy
    deadline: float | None
    parts: tuple[PlannedPart, ...]


@dataclass(frozen=True, eq=False)
class Answered:
    """The call is answered and closed. rows [tokens, hidden]; missing: the parts that it does without."""

    owner: str
    key: CallKey
    rows: Tensor
    missing: tuple[MissingPart, ...] = ()


@dataclass(frozen=True)
class PartWasRefused:
    """A part arrived and can't be used; another try may deliver it. The call stays open."""

    owner: str
    key: CallKey
    part: int
    reason: str


@dataclass(frozen=True)
class SourceWasLost:
    """What the expert process `instance` sent lately may not have arrived."""

    owner: str
    instance: str


@dataclass(frozen=True)
class CallWasRejected:
    """The call can't be answered. deadline: because its time is over, not because its plan is wrong."""

    owner: str
    key: CallKey
    message: str
    deadline: bool = False


CombineEvent = Answered | PartWasRefused | SourceWasLost | CallWasRejected


@dataclass(frozen=True)
class CombinerStats:
    """Counters since the start, and calls open now."""

    combined: int = 0
    open: int = 0
    duplicates: int = 0
    refused: int = 0
    missing: int = 0
    failed: int = 0


class Combining(Protocol):
    """The combiner as the wire uses it; every method returns what is to be told to whom. Not thread-safe."""

    def plan(self, owner: str, plan: CallPlan, now: float) -> Sequence[CombineEvent]:
        """A layer call begins, or is told again (then it belongs to the owner that told it last)."""

    def part(self, key: CallKey, part: int, rows: Tensor, now: float) -> Sequence[CombineEvent]:
        """A partial [rows, hidden] arrived, before or after its plan."""

    def broken_part(self, key: CallKey, part: int, reason: str, now: float) -> Sequence[CombineEvent]:
        """A partial arrived that can't even be read as a tensor."""

    def give_up(self, key: CallKey, part: int, reason: str, now: float) -> Sequence[CombineEvent]:
        """No replica will deliver this part."""

    def abandon(self, key: CallKey, now: float) -> Sequence[CombineEvent]:
        """Nobody waits for this call any more."""

    def forget_owner(self, owner: str, now: float) -> Sequence[CombineEvent]:
        """The owner is gone, and with it all who wait for its calls."""

    def source_lost(self, instance: str, now: float) -> Sequence[CombineEvent]:
        """The stream from the expert process `instance` broke, or begins anew after that may have happened."""

    def expire(self, now: float) -> Sequence[CombineEvent]:
        """Does what is due by `now`: deadlines, and the time that a part may wait for its plan."""

    def next_deadline(self) -> float | None:
        """When `expire` has something to do; None for never."""

    def stats(self) -> CombinerStats:
        """The figures."""
