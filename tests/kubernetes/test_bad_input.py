"""Models that can't be served, all at once: each says why, none disturbs another, and the operator rests meanwhile."""

import os
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from moe.operator.naming import SCHEMA_ANNOTATION, VERSION_ANNOTATION
from moe.operator.resources import definitions
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster_models import (
    CLAIM,
    FOLDER,
    START_S,
    LocalOperator,
    conditions,
    idle_model,
    operator,
    put_package,
    until_condition,
)
from support.discovered import install_definitions
from support.tiny_package import write_package

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""

Wishes = dict[str, Any]
HUGE = {"requests": {"cpu": "1000"}}
NOWHERE = "localhost:1/moe:1"
"""An image that no registry has: nobody listens there."""

WRONG: dict[str, tuple[Wishes, str, str, str]] = {
    "claimless": ({"package": {"claim": "nowhere"}}, "PackageReady", "ClaimMissing", "PersistentVolumeClaim nowhere"),
    "imageless": ({"image": NOWHERE}, "PackageReady", "InspectionFailing", "localhost:1"),
    "secretless": (
        {"image": NOWHERE, "imagePullSecrets": ["absent"]},
        "PackageReady",
        "InspectionFailing",
        "pulled with absent of imagePullSecrets: is each there",
    ),
    "sourceless": (
        {"package": {"claim": CLAIM, "subPath": "made", "source": "absent"}},
        "PackageReady",
        "ConversionFailed",
        "absent",
    ),
    "oversized": ({"experts": {"replicas": 1, "resources": HUGE}}, "Degraded", "PodsFailing", "Insufficient cpu"),
    "gpuless": ({"experts": {"replicas": 1, "gpus": 1}}, "Degraded", "PodsFailing", "Insufficient nvidia.com/gpu"),
    "classless": (
        {"experts": {"replicas": 1, "priorityClassName": "absent"}},
        "Degraded",
        "PodsFailing",
        "no PriorityClass with name absent",
    ),
    "choosy": ({"routing": {"topK": 99}}, "Degraded", "WishesUnfit", "routing.topK is 99; want 1 to 4"),
}
"""name -> (its wishes, the condition that is to say so, the reason, words of the message)."""

RESTED_S = 15.0
MOST_REQUESTS_A_SECOND = 1.0


@dataclass
class Site:
    """A namespace with a healthy model among those of WRONG, and the operator of all."""

    namespace: Namespace
    acting: LocalOperator
    healthy: str


@pytest.fixture(scope="module")
def site(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    install_definitions(kube)
    package = write_package(tmp_path_factory.mktemp("packages") / "tiny")
    with kube.new_namespace(f"wrong-{os.getpid()}") as namespace:
        put_package(namespace, package)
        with operator(namespace, tmp_path_factory.mktemp("operator")) as acting:
            namespace.apply(idle_model("healthy"))
            until_condition(namespace, "Progressing", "AsWished", name="healthy", patience_s=START_S)
            version = namespace.get("moemodel", "healthy")["metadata"]["resourceVersion"]
            namespace.apply(*(idle_model(name, **wishes) for name, (wishes, *_) in WRONG.items()))
            yield Site(namespace, acting, version)
            print("\n".join(namespace.account()))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_a_condition_and_an_event_that_name_the_cause(site: Site, name: str) -> None:
    _, kind, reason, words = WRONG[name]
    assert words in until_condition(site.namespace, kind, reason, name=name, patience_s=START_S)

    def told() -> bool:
        events = site.namespace.list("events")
        return any((each["involvedObject"]["name"], each["reason"]) == (name, reason) for each in events)

    wait_until(told, f"no event of {name} has the reason {reason}", 30, every_s=0.5)


def test_while_nothing_can_be_done_the_operator_rests_and_a_healthy_model_is_left_alone(site: Site) -> None:
    site.acting.settled()
    before, began = site.acting.metrics()["moe_operator_requests_total"], time.monotonic()
    wait_until(lambda: time.monotonic() - began > RESTED_S, "the time does not pass", 2 * RESTED_S, every_s=0.5)
    asked, seconds = site.acting.metrics()["moe_operator_requests_total"] - before, time.monotonic() - began
    print(f"{asked:.0f} requests in {seconds:.1f} s")

    assert asked / seconds <= MOST_REQUESTS_A_SECOND
    assert site.acting.process.poll() is None
    assert conditions(site.namespace, "healthy")["Degraded"][1] == "NoFault"
    assert site.namespace.get("moemodel", "healthy")["metadata"]["resourceVersion"] == site.healthy


def test_models_of_one_name_in_two_namespaces_are_two(site: Site, namespace: Namespace, tmp_path: Path) -> None:
    with operator(namespace, tmp_path):
        namespace.apply(idle_model("healthy"))
        until_condition(namespace, "PackageReady", "ClaimMissing", name="healthy")
        namespace.kubectl("delete", "moemodel", "healthy")
        wait_until(lambda: not namespace.exists("moemodel", "healthy"), "it stays", 30)
    assert conditions(site.namespace, "healthy")["PackageReady"][1] == "Read"
    assert len(site.namespace.list("moeexperts", "moe.dev/model=healthy")) == 4


def older() -> list[Wishes]:
    """The definitions without fields that are new, as a version before would have them."""
    made = [deepcopy(dict(each)) for each in definitions()]
    for each in made:
        each["metadata"]["annotations"] = {SCHEMA_ANNOTATION: "older", VERSION_ANNOTATION: "0.0.9"}
        spec = each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        spec["status"]["properties"].pop("experts")
        if each["spec"]["names"]["kind"] == "MoEModel":
            routing = spec["spec"]["properties"]["routing"]
            for new in ("topK", "strategy"):
                routing["properties"].pop(new)
                routing["default"].pop(new)
            routing["x-kubernetes-validations"] = routing["x-kubernetes-validations"][1:]
    return made


def test_with_definitions_older_than_itself_an_operator_serves_and_says_so(
    kube: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    put_package(namespace, write_package(tmp_path / "tiny"), folder=FOLDER)
    try:
        kube.in_namespace("default").apply(*older())
        with operator(namespace, tmp_path) as acting:
            namespace.apply(idle_model())
            until_condition(namespace, "Progressing", "AsWished", patience_s=START_S)
            until_condition(namespace, "Degraded", "DefinitionsOutdated")
            assert acting.metrics()["moe_operator_definitions_current"] == 0
            acting.settled()
            assert acting.end() == 0
            said = acting.log.read_text()
    finally:
        install_definitions(kube)
    for each in definitions():
        assert f"definition {each['metadata']['name']} is of another version of moe; apply charts/moe/crds" in said
