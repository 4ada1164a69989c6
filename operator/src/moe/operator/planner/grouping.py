"""The plan: experts into groups, groups into replicas, and the routers and aggregators around them."""

import difflib
import itertools
from collections.abc import Mapping

from moe.operator.planner.errors import ConflictingWishes, UnfitModel, UnfitWish
from moe.operator.planner.naming import deployment_name, group_name, replica_name
from moe.operator.planner.threads import thread_budget
from moe.operator.planner.values import (
    AggregatorPlan,
    GroupPlan,
    ModelFacts,
    Placement,
    Plan,
    ReplicaPlan,
    RouterPlan,
    Wishes,
)

MOST_EXPERTS = 4096
MOST_REPLICAS = 64
MOST_ROUTERS = 64


def plan(model: ModelFacts, wishes: Wishes) -> Plan:
    """Every process of a deployment. Raises a PlanError that names the value and the bound."""
    _check_model(model)
    _check_wishes(wishes)
    name = deployment_name(model.name)
    groups = _groups(name, _expert_sets(model.experts, wishes), wishes)
    routers, aggregators = _routers_and_aggregators(wishes)
    replicas = sum(len(group.replicas) for group in groups)
    threads = thread_budget(
        wishes.cores, replicas, wishes.routers, router=wishes.router_threads, expert=wishes.expert_threads
    )
    return Plan(name, model.name, groups, routers, aggregators, wishes.aggregator, threads)


def _check_model(model: ModelFacts) -> None:
    if not model.moe_layers:
        raise UnfitModel(f"{model.name} has no layer with experts; a dense model has to be converted first")
    for layer, experts in sorted(model.moe_layers.items()):
        if not 1 <= experts <= MOST_EXPERTS:
            raise UnfitModel(f"layer {layer} of {model.name} has {experts} experts; want 1 to {MOST_EXPERTS}")
        if not 1 <= model.topk <= experts:
            raise UnfitModel(f"topk of {model.name} is {model.topk}; want 1 to {experts}, the experts of layer {layer}")


def _check_wishes(wishes: Wishes) -> None:
    _within("replicas", wishes.replicas, MOST_REPLICAS)
    _within("routers", wishes.routers, MOST_ROUTERS)
    _within("aggregators", wishes.aggregators, MOST_ROUTERS)
    if wishes.aggregator is not Placement.PROCESS and wishes.aggregators != 1:
        raise ConflictingWishes(
            f"aggregators is {wishes.aggregators} and aggregator is {wishes.aggregator.value}: "
            "that placement has exactly one per router; wish for a process to choose the number"
        )


def _expert_sets(experts: int, wishes: Wishes) -> list[tuple[int, ...]]:
    """Neighbouring ids together; sizes differ by one at most."""
    if wishes.groups is not None and wishes.experts_per_group is not None:
        raise ConflictingWishes(
            f"groups is {wishes.groups} and experts_per_group is {wishes.experts_per_group}; wish for one of them"
        )
    count = experts
    if wishes.groups is not None:
        count = _within("groups", wishes.groups, experts, "the model's experts")
    elif wishes.experts_per_group is not None:
        per_group = _within("experts_per_group", wishes.experts_per_group, experts, "the model's experts")
        count = -(-experts // per_group)
    edges = [index * experts // count for index in range(count + 1)]
    return [tuple(range(low, high)) for low, high in itertools.pairwise(edges)]


def _groups(deployment: str, expert_sets: list[tuple[int, ...]], wishes: Wishes) -> tuple[GroupPlan, ...]:
    names = [group_name(deployment, index, experts) for index, experts in enumerate(expert_sets)]
    _check_replicas_for(wishes.replicas_for, names)
    return tuple(
        GroupPlan(index, name, experts, _replicas(name, wishes.replicas_for.get(name, wishes.replicas)))
        for index, (name, experts) in enumerate(zip(names, expert_sets, strict=True))
    )


def _replicas(group: str, count: int) -> tuple[ReplicaPlan, ...]:
    return tuple(ReplicaPlan(replica_name(group, index)) for index in range(count))


def _check_replicas_for(replicas_for: Mapping[str, int], names: list[str]) -> None:
    for name, count in sorted(replicas_for.items()):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
            raise UnfitWish(
                "replicas_for",
                name,
                f"there are {len(names)} groups, {names[0]} to {names[-1]}, "
                f"and none of that name; did you mean {near}?",
            )
        _within(f"replicas_for {name}", count, MOST_REPLICAS)


def _routers_and_aggregators(wishes: Wishes) -> tuple[tuple[RouterPlan, ...], tuple[AggregatorPlan, ...]]:
    """A sidecar serves its router alone; aggregators of their own serve all routers."""
    routers = [f"router-{index}" for index in range(wishes.routers)]
    if wishes.aggregator is Placement.EMBEDDED:
        return tuple(RouterPlan(router, ()) for router in routers), ()
    if wishes.aggregator is Placement.SIDECAR:
        sidecars = tuple(AggregatorPlan(f"agg-{index}", router) for index, router in enumerate(routers))
        paired = zip(routers, sidecars, strict=True)
        return tuple(RouterPlan(router, (sidecar.name,)) for router, sidecar in paired), sidecars
    names = tuple(f"agg-{index}" for index in range(wishes.aggregators))
    return tuple(RouterPlan(router, names) for router in routers), tuple(map(AggregatorPlan, names))


def _within(wish: str, value: int, most: int, of: str = "") -> int:
    if not 1 <= value <= most:
        raise UnfitWish(wish, value, f"want 1 to {most}" + (f", {of}" if of else ""))
    return value
