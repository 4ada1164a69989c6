"""What a cluster's objects say about who serves, worked out by hand from the API's definitions."""

from typing import Any

import pytest
from moe.discovery.cluster_objects import snapshot_of, wishes_of
from moe.discovery.directory import NO_WISHES, AggregatorReplica, ExpertReplica, RoutingWishes

Body = dict[str, Any]


def slice_of(component: str, *endpoints: Body, group: str = "", model: str = "demo", family: str = "IPv4") -> Body:
    labels = {"moe.dev/model": model, "moe.dev/component": component, **({"moe.dev/group": group} if group else {})}
    ports = [{"name": "metrics", "port": 9090}, {"name": "grpc", "port": 50052}]
    return {"metadata": {"labels": labels}, "addressType": family, "ports": ports, "endpoints": list(endpoints)}


def pod(name: str, address: str, **conditions: bool) -> Body:
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def group(name: str, *ids: int, model: str = "demo", version: str = "") -> Body:
    found: Body = {"metadata": {"name": name}, "spec": {"model": model, "experts": list(ids)}}
    return {**found, "status": {"version": version}} if version else found


def test_a_ready_pod_of_a_group_is_a_replica_at_its_grpc_port() -> None:
    found = snapshot_of(
        "demo",
        [slice_of("expert", pod("demo-003-x", "10.0.0.7", ready=True), group="demo-003")],
        [group("demo-003", 3, version="ab12")],
    )
    assert found.experts == (
        ExpertReplica("demo-003-x", "demo-003", (3,), "10.0.0.7:50052", ready=True, version="ab12"),
    )


def test_a_leaving_pod_is_listed_and_not_ready() -> None:
    leaving = pod("p", "10.0.0.7", ready=False, serving=True, terminating=True)
    (replica,) = snapshot_of("demo", [slice_of("expert", leaving, group="g")], [group("g", 0)]).experts
    assert not replica.ready


def test_a_condition_that_is_not_given_counts_as_ready() -> None:
    (replica,) = snapshot_of("demo", [slice_of("expert", pod("p", "10.0.0.7"), group="g")], [group("g", 0)]).experts
    assert replica.ready


@pytest.mark.parametrize("order", [1, -1], ids=["ready first", "ready last"])
def test_a_pod_in_two_slices_is_one_replica_that_is_ready_if_it_is_so_in_one(order: int) -> None:
    slices = [
        slice_of("expert", pod("p", "10.0.0.7", ready=True), group="g"),
        slice_of("expert", pod("p", "10.0.0.7", ready=False), group="g"),
    ]
    (replica,) = snapshot_of("demo", slices[::order], [group("g", 0)]).experts
    assert replica.ready


def test_of_two_address_families_a_pod_is_dialled_by_the_first() -> None:
    slices = [
        slice_of("expert", pod("p", "fd00::7", ready=True), group="g", family="IPv6"),
        slice_of("expert", pod("p", "10.0.0.7", ready=True), group="g"),
    ]
    (replica,) = snapshot_of("demo", slices, [group("g", 0)]).experts
    assert replica.endpoint == "10.0.0.7:50052"


def test_an_ipv6_address_is_written_in_brackets() -> None:
    alone = slice_of("expert", pod("p", "fd00::7", ready=True), group="g", family="IPv6")
    (replica,) = snapshot_of("demo", [alone], [group("g", 0)]).experts
    assert replica.endpoint == "[fd00::7]:50052"


def test_a_group_whose_experts_are_not_known_yet_is_left_out() -> None:
    slices = [slice_of("expert", pod("p", "10.0.0.7", ready=True), group="g")]
    assert snapshot_of("demo", slices, [group("other", 1)]).experts == ()


def test_another_models_pods_and_groups_do_not_count() -> None:
    slices = [
        slice_of("expert", pod("p", "10.0.0.7", ready=True), group="g", model="omed"),
        slice_of("expert", pod("q", "10.0.0.8", ready=True), group="h"),
    ]
    assert snapshot_of("demo", slices, [group("g", 0), group("h", 1, model="omed")]).experts == ()


def test_aggregators_are_listed_by_pod() -> None:
    found = snapshot_of("demo", [slice_of("aggregator", pod("agg-b", "10.0.0.9", ready=True))], [])
    assert found.aggregators == (AggregatorReplica("agg-b", "10.0.0.9:50052", ready=True),)


def test_routers_are_nobody_that_a_router_dials() -> None:
    found = snapshot_of("demo", [slice_of("router", pod("r", "10.0.0.9", ready=True))], [])
    assert (found.experts, found.aggregators) == ((), ())


def test_a_slice_without_endpoints_or_ports_lists_nobody() -> None:
    empty = {**slice_of("expert", group="g"), "endpoints": None}
    portless = {**slice_of("expert", pod("p", "10.0.0.7"), group="g"), "ports": None}
    assert snapshot_of("demo", [empty, portless], [group("g", 0)]).experts == ()


def test_wishes_are_what_the_models_routing_says() -> None:
    gates = {"topK": 1, "strategy": "drop"}
    routing = {"missingExpert": {"policy": "fail"}, **gates, "layerTimeoutSeconds": 5, "hedgeAfterSeconds": 0.5}
    assert wishes_of({"spec": {"routing": routing}}) == RoutingWishes(
        missing_policy="fail", topk=1, strategy="drop", layer_timeout_s=5.0, hedge_after_s=0.5
    )


@pytest.mark.parametrize("model", [None, {"spec": {}}, {"spec": {"routing": {}}}])
def test_a_model_that_says_nothing_wishes_nothing(model: Body | None) -> None:
    assert wishes_of(model) == NO_WISHES
