"""From objects of a cluster to a snapshot and to wishes. Pure: objects are JSON as the API server checked it.

Pods come from EndpointSlices, whose labels say what they serve; the ids of a group's experts from its MoEExpert. An
endpoint that is listed and not ready is starting or leaving: it is listed here too, so that streams to it stay.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moe.discovery import names
from moe.discovery.directory import NO_WISHES, AggregatorReplica, ExpertReplica, RoutingWishes, Snapshot

Body = Mapping[str, Any]

_FAMILIES = ("IPv4", "IPv6")
"""In the order of preference: with two address families a pod is listed once in each."""


@dataclass(frozen=True)
class _Endpoint:
    """A pod behind a Service's gRPC port."""

    pod: str
    target: str
    ready: bool


def snapshot_of(model: str, slices: Iterable[Body], experts: Iterable[Body]) -> Snapshot:
    """Who serves the model. Version 0: whoever publishes counts. A group whose MoEExpert is not there is left out."""
    held = {each["metadata"]["name"]: each for each in experts if each["spec"]["model"] == model}
    ours = [each for each in slices if _label(each, names.MODEL_LABEL) == model]
    groups: dict[str, list[Body]] = {}
    aggregators: list[Body] = []
    for each in ours:
        component = _label(each, names.COMPONENT_LABEL)
        if component == names.AGGREGATOR_COMPONENT:
            aggregators.append(each)
        elif component == names.EXPERT_COMPONENT:
            groups.setdefault(_label(each, names.GROUP_LABEL), []).append(each)
    return Snapshot(
        version=0,
        model=model,
        experts=tuple(
            replica for group in sorted(groups) if group in held for replica in _replicas(held[group], groups[group])
        ),
        aggregators=tuple(AggregatorReplica(each.pod, each.target, each.ready) for each in _endpoints(aggregators)),
    )


def wishes_of(model: Body | None) -> RoutingWishes:
    """What a MoEModel's spec.routing says; nothing without one."""
    if model is None:
        return NO_WISHES
    routing = model["spec"].get("routing", {})
    return RoutingWishes(
        missing_policy=routing.get("missingExpert", {}).get("policy"),
        topk=routing.get("topK"),
        strategy=routing.get("strategy"),
        layer_timeout_s=_seconds(routing, "layerTimeoutSeconds"),
        hedge_after_s=_seconds(routing, "hedgeAfterSeconds"),
    )


def _replicas(expert: Body, slices: Iterable[Body]) -> Iterator[ExpertReplica]:
    ids = tuple(sorted(expert["spec"]["experts"]))
    version = expert.get("status", {}).get("version", "")
    for each in _endpoints(slices):
        yield ExpertReplica(each.pod, expert["metadata"]["name"], ids, each.target, each.ready, version)


def _endpoints(slices: Iterable[Body]) -> list[_Endpoint]:
    """One a pod, by name. While a pod moves from one slice to another it is in both: ready in one is ready."""
    found: dict[str, _Endpoint] = {}
    for family in _FAMILIES:
        of_family: dict[str, _Endpoint] = {}
        for each in slices:
            if each["addressType"] == family:
                for endpoint in _endpoints_of(each):
                    known = of_family.get(endpoint.pod)
                    if known is None or endpoint.ready:
                        of_family[endpoint.pod] = endpoint
        found = {**of_family, **found}
    return [found[pod] for pod in sorted(found)]


def _endpoints_of(each: Body) -> Iterator[_Endpoint]:
    ports = [port["port"] for port in each.get("ports") or () if port.get("name") == names.GRPC_PORT_NAME]
    for endpoint in each.get("endpoints") or () if ports else ():
        address = endpoint["addresses"][0]
        host = f"[{address}]" if ":" in address else address
        # a condition that is not given counts as true, says the API's definition
        ready = endpoint.get("conditions", {}).get("ready") is not False
        yield _Endpoint(endpoint.get("targetRef", {}).get("name", address), f"{host}:{ports[0]}", ready)


def _label(each: Body, key: str) -> str:
    return str(each["metadata"].get("labels", {}).get(key, ""))


def _seconds(routing: Body, key: str) -> float | None:
    return float(routing[key]) if key in routing else None
