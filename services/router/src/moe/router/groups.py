"""Which expert group serves which expert: the table that a layer's routing is cut up by.

The index of a group in the table is the `part` of a layer call. Groups are remembered after their last replica has gone
from the directory, so that requests wait for its return instead of failing for want of a name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from moe.discovery.directory import AggregatorReplica, ExpertReplica, Snapshot
from numpy.typing import NDArray

UNSERVED = "(no group)"
"""The group of experts that no group of the directory has ever listed."""


@dataclass(frozen=True)
class Group:
    """An expert group. experts: the ids it holds, ascending."""

    name: str
    experts: tuple[int, ...]


@dataclass(frozen=True)
class Fleet:
    """Everything the router sends to, at one moment.

    groups: sorted by their lowest expert; disjoint and together all experts of the model. replicas: those that are
    ready, by group name. aggregators: those that are ready. part_of_expert: int32 [experts], the index of each
    expert's group. snapshot: what it was read from, with those that are not ready.
    """

    groups: tuple[Group, ...]
    replicas: dict[str, tuple[ExpertReplica, ...]]
    aggregators: tuple[AggregatorReplica, ...]
    part_of_expert: NDArray[np.int32]
    snapshot: Snapshot

    def ready(self, group: str) -> tuple[ExpertReplica, ...]:
        """The group's replicas that are ready."""
        return self.replicas.get(group, ())

    @cached_property
    def replicated(self) -> bool:
        """Whether any group has a choice of replicas."""
        return any(len(replicas) > 1 for replicas in self.replicas.values())

    def unready_groups(self) -> list[str]:
        """Names of the groups without a ready replica."""
        return [group.name for group in self.groups if not self.ready(group.name)]


class FleetError(ValueError):
    """A directory that can't be right; the message names the replicas that contradict each other."""


def empty_fleet(experts: int) -> Fleet:
    """The fleet before the directory is read."""
    return _fleet([], experts, Snapshot(-1, "", ()))


def updated(fleet: Fleet, snapshot: Snapshot) -> Fleet:
    """The fleet as the snapshot has it. Raises FleetError."""
    experts = len(fleet.part_of_expert)
    groups = _listed_groups(snapshot.experts, experts)
    listed = {expert for group in groups for expert in group.experts}
    remembered = [g for g in fleet.groups if g.name != UNSERVED and listed.isdisjoint(g.experts)]
    return _fleet([*groups, *remembered], experts, snapshot)


def _listed_groups(replicas: Iterable[ExpertReplica], experts: int) -> list[Group]:
    groups: dict[str, ExpertReplica] = {}
    holder: dict[int, ExpertReplica] = {}
    for replica in replicas:
        first = groups.setdefault(replica.group, replica)
        if first.experts != replica.experts:
            raise FleetError(
                f"group {replica.group}: {first.name} holds experts {list(first.experts)} and {replica.name} "
                f"{list(replica.experts)}; all replicas of a group must hold the same"
            )
        if first is not replica:
            continue
        for expert in replica.experts:
            if not 0 <= expert < experts:
                raise FleetError(f"{replica.name} holds expert {expert}; the model's experts are 0 to {experts - 1}")
            if expert in holder:
                raise FleetError(f"expert {expert} is in group {holder[expert].group} and in group {replica.group}")
            holder[expert] = replica
    return [Group(name, tuple(sorted(replica.experts))) for name, replica in groups.items() if replica.experts]


def _fleet(groups: list[Group], experts: int, snapshot: Snapshot) -> Fleet:
    served = {expert for group in groups for expert in group.experts}
    unserved = tuple(expert for expert in range(experts) if expert not in served)
    if unserved:
        groups = [*groups, Group(UNSERVED, unserved)]
    ordered = tuple(sorted(groups, key=lambda group: group.experts))
    table = np.empty(experts, dtype=np.int32)
    for part, group in enumerate(ordered):
        table[list(group.experts)] = part
    ready: dict[str, tuple[ExpertReplica, ...]] = {}
    for replica in snapshot.experts:
        if replica.ready:
            ready[replica.group] = (*ready.get(replica.group, ()), replica)
    aggregators = tuple(aggregator for aggregator in snapshot.aggregators if aggregator.ready)
    return Fleet(ordered, ready, aggregators, table, snapshot)
