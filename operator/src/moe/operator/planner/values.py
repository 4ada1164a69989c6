"""What goes into a plan and what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from moe.operator.planner.threads import ThreadBudget


class Placement(Enum):
    """Where the aggregator runs: an own process over TCP, beside the router on a unix socket, or inside the router."""

    PROCESS = "process"
    SIDECAR = "sidecar"
    EMBEDDED = "embedded"


@dataclass(frozen=True)
class ModelFacts:
    """What the planner has to know of a model. name: the package's.

    moe_layers: decoder layer index -> number of routed experts there; expert e exists in the layers with more than e.
    topk: experts a token goes to in each layer.
    """

    name: str
    moe_layers: Mapping[int, int]
    topk: int

    @property
    def experts(self) -> int:
        """Number of expert ids, those of the widest layer."""
        return max(self.moe_layers.values(), default=0)


@dataclass(frozen=True)
class Wishes:
    """What the owner wishes. groups or experts_per_group: at most one of them; neither means one expert per group.

    cores: cores that all processes share. replicas_for: group name -> replicas, over `replicas`.
    aggregators: processes of placement PROCESS; the other placements have one per router.
    router_threads, expert_threads: None for the thread budget's choice.
    """

    cores: int
    groups: int | None = None
    experts_per_group: int | None = None
    replicas: int = 1
    replicas_for: Mapping[str, int] = field(default_factory=dict)
    routers: int = 1
    aggregator: Placement = Placement.PROCESS
    aggregators: int = 1
    router_threads: int | None = None
    expert_threads: int | None = None


@dataclass(frozen=True)
class ReplicaPlan:
    """One expert process. name: of its group, and its index in it."""

    name: str


@dataclass(frozen=True)
class GroupPlan:
    """An expert group. index: its part number in every layer call. experts: ascending ids."""

    index: int
    name: str
    experts: tuple[int, ...]
    replicas: tuple[ReplicaPlan, ...]


@dataclass(frozen=True)
class AggregatorPlan:
    """One aggregator outside a router. beside: for a sidecar, its router's name."""

    name: str
    beside: str | None = None


@dataclass(frozen=True)
class RouterPlan:
    """One router. aggregators: names of those it may use; empty when it holds one inside."""

    name: str
    aggregators: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Every process of a deployment. name: the deployment's, by which group names begin."""

    name: str
    model: str
    groups: tuple[GroupPlan, ...]
    routers: tuple[RouterPlan, ...]
    aggregators: tuple[AggregatorPlan, ...]
    placement: Placement
    threads: ThreadBudget

    @property
    def processes(self) -> int:
        """How many processes it takes."""
        return sum(len(group.replicas) for group in self.groups) + len(self.routers) + len(self.aggregators)
