"""The port through which a layer call leaves the router, is worked on by experts and comes back combined.

Router, expert and aggregator are written against these types; an implementation (grpcio now, a native one beside it)
stands behind them and passes one test suite. Who dials whom: the router dials experts (Dispatch) and its aggregator
(Combine), the aggregator dials experts (Collect); experts never dial. One long-lived stream per pair.
Replica choice, retries and what a missing part means to a request are the router's; addition is the combiner's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from torch import Tensor, dtype


class MissingPolicy(Enum):
    """What the combiner does about a part that does not come; see moe.aggregator.v1.MissingPolicy."""

    WAIT = "wait"
    RENORMALISE = "renormalise"
    FAIL = "fail"


@dataclass(frozen=True)
class Part:
    """What one expert group gets in a layer call. `part` is the group's index in the plan.

    token_index int32 [rows], strictly increasing: the rows of the layer call's hidden states that go to the group.
    slot_rows int32 [slots], not decreasing: for each (row, expert) slot the index into token_index.
    slot_experts int32 [slots]: the expert ids. slot_weights [slots]: routing weights, float32 or the hidden dtype.
    """

    part: int
    token_index: Tensor
    slot_rows: Tensor
    slot_experts: Tensor
    slot_weights: Tensor


@dataclass(frozen=True)
class LayerCall:
    """One layer's rows and where they go; idempotent by (call_id, layer, part).

    hidden [tokens, hidden]; deadline: time.monotonic() seconds; partial_dtype: None means hidden's.
    """

    call_id: int
    layer: int
    hidden: Tensor
    parts: tuple[Part, ...]
    policy: MissingPolicy
    deadline: float
    partial_dtype: dtype | None = None


@dataclass(frozen=True)
class Places:
    """part_of_expert: the part of each expert. endpoints: where each part goes, by part."""

    part_of_expert: tuple[int, ...]
    endpoints: tuple[str, ...]


@dataclass(frozen=True)
class RoutedCall:
    """A layer call before its routing is cut into parts; otherwise as LayerCall.

    index int64 [tokens, k]: the experts of each row, an id >= experts is a dropped slot. weights [tokens, k].
    aggregator: as of `RouterWire.exchange`.
    """

    call_id: int
    layer: int
    hidden: Tensor
    index: Tensor
    weights: Tensor
    experts: int
    places: Places
    policy: MissingPolicy
    deadline: float
    partial_dtype: dtype | None
    aggregator: str | None

    def without_parts(self) -> LayerCall:
        """The call for whoever asks on for its news, once it is open."""
        return LayerCall(self.call_id, self.layer, self.hidden, (), self.policy, self.deadline, self.partial_dtype)


@dataclass(frozen=True)
class Target:
    """Send this part to this expert endpoint (a gRPC target: unix:/path or host:port) now."""

    part: int
    endpoint: str


class FailureKind(Enum):
    """Why a sent part won't arrive from where it was sent. All but INVALID are worth another try."""

    OVERLOADED = "overloaded"
    EXPIRED = "expired"
    NO_COLLECTOR = "no_collector"
    INVALID = "invalid"
    DRAINING = "draining"
    FAILED = "failed"
    STREAM_LOST = "stream_lost"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


@dataclass(frozen=True)
class PartFailure:
    """A part that has to be sent again or given up."""

    part: int
    endpoint: str
    kind: FailureKind
    message: str
    retry_after_s: float = 0.0


@dataclass(frozen=True)
class MissingPart:
    """A part that an answer does without, and how many rows that touches."""

    part: int
    reason: str
    rows: int


@dataclass(frozen=True)
class Combined:
    """The answer: rows [tokens, hidden] in the hidden dtype; rows that no part touches are zero."""

    rows: Tensor
    missing: tuple[MissingPart, ...] = ()


@dataclass(frozen=True)
class Incomplete:
    """Parts failed, or `until` passed without news (then `failures` is empty). The call stays open."""

    failures: tuple[PartFailure, ...] = ()


@dataclass(frozen=True)
class AggregatorLost:
    """The aggregator's stream broke or can't be opened: redo the layer call from the start. The call is closed."""

    message: str


@dataclass(frozen=True)
class CallFailed:
    """The aggregator rejected the plan, or the deadline passed before it answered. The call is closed."""

    message: str
    deadline: bool


Outcome = Combined | Incomplete | AggregatorLost | CallFailed


class RouterWire(Protocol):
    """The router's end. One thread (the engine's) calls; implementations may use threads of their own."""

    name: str

    def exchange(self, call: LayerCall, targets: Sequence[Target], aggregator: str | None, until: float) -> Outcome:
        """Sends the plan (at the call's first exchange) and the given parts; returns at the first news.

        aggregator: endpoint of the aggregator, None for the one inside this process. until: time.monotonic() seconds
        after which an empty Incomplete is returned. Never raises for the network's sake.
        """

    def give_up(self, call: LayerCall, part: int, reason: str) -> None:
        """Tells the combiner that no replica will deliver this part; its decision comes from the next exchange."""

    def abandon(self, call: LayerCall) -> None:
        """Forgets a call that nobody waits for."""

    def queued_rows(self, endpoint: str) -> int:
        """Rows waiting at an expert as of its last receipt; 0 when unknown."""

    def set_endpoints(self, experts: Sequence[str], aggregators: Sequence[str]) -> None:
        """The endpoints that exist now: dials new ones ahead of need (with back-off), closes streams to others."""

    def close(self) -> None:
        """Ends all streams."""


@runtime_checkable
class RoutedWire(Protocol):
    """A RouterWire that cuts a routing into parts itself, which costs less than handing it the parts."""

    def exchange_routed(self, call: RoutedCall, until: float) -> Outcome | None:
        """As the first `exchange` of a call with a part for every group that has slots; further ones are `exchange`s.

        None when there is nothing to send: no slot is left, or a row is not finite. The call is not open then.
        """


@dataclass(frozen=True)
class WorkItem:
    """One accepted dispatch in an expert, tensors as in moe.expert.v1.DispatchRequest.

    deadline: time.monotonic() seconds, None for no deadline. ticket: the implementation's own.
    """

    call_id: int
    layer: int
    part: int
    aggregator: str
    rows: Tensor
    slot_rows: Tensor
    slot_experts: Tensor
    slot_weights: Tensor
    partial_dtype: dtype
    deadline: float | None
    ticket: object = field(default=None, compare=False)


@dataclass(frozen=True)
class Batch:
    """Work items of one layer, from all routers, ready to compute."""

    layer: int
    items: tuple[WorkItem, ...]


@dataclass(frozen=True)
class ExpertLimits:
    """What an expert accepts. experts_by_layer: layer -> the ids it holds there.

    max_rows: rows in one dispatch. max_queued_rows: rows waiting, beyond which dispatches are OVERLOADED.
    max_batch_rows: rows joined into one batch (a larger single dispatch is a batch of its own).
    """

    hidden: int
    dtype: dtype
    experts_by_layer: Mapping[int, frozenset[int]]
    max_rows: int = 16384
    max_queued_rows: int = 32768
    max_batch_rows: int = 4096


@dataclass(frozen=True)
class QueueStats:
    """Figures of an expert's queue; counters since the start.

    dispatches: taken for a kernel call. waited_s: seconds that those waited, added up. rows_per_s: while computing,
    over about the last five batches; 0 before the first.
    """

    queued_rows: int
    overloaded: int
    expired: int
    invalid: int
    dispatches: int = 0
    waited_s: float = 0.0
    rows_per_s: float = 0.0


class ExpertWire(Protocol):
    """The expert's end: the compute thread pulls batches and hands back partials."""

    name: str

    def next_batch(self, timeout_s: float) -> Batch | None:
        """The oldest layer's waiting rows joined, expired ones dropped; None after the timeout or when drained."""

    def finish(self, batch: Batch, partials: Sequence[Tensor]) -> None:
        """Pushes one [rows, hidden] partial per item to its aggregator and acknowledges to its router."""

    def fail(self, batch: Batch, message: str) -> None:
        """Answers FAILED for all items of the batch."""

    def drain(self) -> None:
        """Refuses new dispatches from now on; what is queued is still handed out."""

    def stats(self) -> QueueStats:
        """Figures of the queue."""
