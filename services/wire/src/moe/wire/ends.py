"""What an implementation of the wire offers the process around it, beside the port that the engine and experts use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc
from moe.runtime.front import Front
from moe.wire.combining import CombinerStats
from moe.wire.port import ExpertWire, RouterWire

DRAIN_QUIET_S = 0.25
"""An expert that drains ends its streams when no dispatch has come for so long. Routers send until they have read a
refusal; a dispatch still on its way when the stream ends would get no answer, and its call wait for another replica."""


class RouterEnd(RouterWire, Protocol):
    """The router's end."""

    def combiner_stats(self) -> CombinerStats | None:
        """Figures of the combiner inside; None where there is none."""

    async def aclose(self) -> None:
        """`close`, on a loop."""


class Served(Protocol):
    """An end that is served. front: what takes the public address in the gRPC server's place, None for the server."""

    name: str
    front: Front | None

    def register(self, server: grpc.aio.Server) -> None:
        """Adds what the gRPC server itself answers; on the server's loop."""

    async def drained(self) -> None:
        """Lets what was accepted be answered, then ends every stream: for `on_drain`."""


@dataclass(frozen=True)
class Computed:
    """What an expert's end computed without the interpreter since the start. slots: expert id -> slots."""

    rows: int = 0
    batches: int = 0
    busy_s: float = 0.0
    slots: Mapping[int, int] = field(default_factory=dict)


class ExpertEnd(ExpertWire, Served, Protocol):
    """The expert's end."""

    def compute_natively(self, entries: Mapping[int, tuple[int, int]], threads: int) -> bool:
        """Has batches computed without the interpreter: layer -> PackedGroup.entry(). False: it can't."""

    def computed(self) -> Computed:
        """What came of it."""


class AggregatorEnd(Served, Protocol):
    """The aggregator's end."""

    def set_experts(self, endpoints: Sequence[str]) -> None:
        """The expert endpoints that exist now, ready or not. From any thread."""

    def stats(self) -> CombinerStats:
        """The combiner's figures."""

    def sources(self) -> int:
        """Collect streams that are open."""

    async def close(self) -> None:
        """Ends the streams to the experts."""
