"""The directory: which processes serve which expert group, as seen at one moment.

An endpoint is a gRPC target, unix:/absolute/path or host:port. The router dials replicas that are ready; one that is
listed and not ready is starting, draining or restarting.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ExpertReplica:
    """One process of an expert group. experts: the ids it holds, ascending. version: of its weights."""

    name: str
    group: str
    experts: tuple[int, ...]
    endpoint: str
    ready: bool
    version: str = ""


@dataclass(frozen=True)
class AggregatorReplica:
    """One aggregator process. name: what dispatches name it by."""

    name: str
    endpoint: str
    ready: bool


@dataclass(frozen=True)
class Snapshot:
    """All of it at one moment. version grows with every change."""

    version: int
    model: str
    experts: tuple[ExpertReplica, ...]
    aggregators: tuple[AggregatorReplica, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RoutingWishes:
    """What is wished of routing while routers run; None leaves what a router was started with.

    missing_policy: wait, renormalise or fail. topk: experts per token, 0 for the checkpoint's own. strategy: family or
    drop. The others in seconds, as the router's settings of these names.
    """

    missing_policy: str | None = None
    topk: int | None = None
    strategy: str | None = None
    layer_timeout_s: float | None = None
    hedge_after_s: float | None = None


NO_WISHES = RoutingWishes()


class Directory(Protocol):
    """Where snapshots come from."""

    def current(self) -> Snapshot:
        """The newest snapshot. Cheap; never blocks."""

    def wait_newer(self, version: int, timeout_s: float) -> Snapshot:
        """Blocks until a snapshot newer than `version` is there or the time is up; returns the newest."""

    def wishes(self) -> RoutingWishes:
        """The newest wishes; the same object as long as nothing has changed. Cheap; never blocks."""

    def trouble(self) -> str:
        """Why what is known may be old, in a sentence for people; empty when it is not."""

    def close(self) -> None:
        """Stops watching."""
