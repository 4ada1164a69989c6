"""An operator brings models about on a real API server, tells how they stand, and touches nothing that is right.

The models here have no processes but the inspection's: what their objects are like in life is test_served_model's.
"""

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cluster import workloads
from support.cluster.api import Document
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster_models import (
    CLAIM,
    START_S,
    LocalOperator,
    conditions,
    everything,
    idle_model,
    operator,
    put_package,
    until_condition,
)
from support.discovered import install_definitions
from support.families import write_checkpoint
from support.tiny_package import write_package

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def definitions(kube: Kube) -> None:
    install_definitions(kube)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four experts in two layers; nothing ever computes with it here."""
    return write_package(tmp_path_factory.mktemp("packages") / "tiny")


@dataclass
class Site:
    """A namespace with a package in a claim, and an operator that serves it."""

    namespace: Namespace
    acting: LocalOperator

    def make(self, name: str, **spec: Any) -> "Made":
        """A model whose objects are all there."""
        self.namespace.apply(idle_model(name, **spec))
        until_condition(self.namespace, "Progressing", "AsWished", name=name, patience_s=120)
        return Made(self.namespace, self.acting, name)


@dataclass
class Made:
    """One model of a site. Names of its groups begin with its own."""

    namespace: Namespace
    acting: LocalOperator
    name: str

    @property
    def groups(self) -> list[str]:
        return [f"{self.name}-00{each}" for each in range(4)]

    def wish(self, **spec: Any) -> None:
        patch = json.dumps({"spec": spec})
        self.namespace.kubectl("patch", "moemodel", self.name, "--type=merge", "-p", patch)

    def listed(self, kind: str) -> list[Document]:
        return self.namespace.list(kind, f"moe.dev/model={self.name}")

    def replicas(self) -> list[int]:
        """Of the groups' Deployments."""
        listed = {each["metadata"]["name"]: each["spec"]["replicas"] for each in self.listed("deployments")}
        return [listed[group] for group in self.groups]


@pytest.fixture(scope="module")
def site(kube: Kube, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with kube.new_namespace(f"operator-{os.getpid()}") as namespace:
        put_package(namespace, package)
        with operator(namespace, tmp_path_factory.mktemp("operator")) as acting:
            yield Site(namespace, acting)


@pytest.fixture
def made(site: Site) -> Iterator[Made]:
    """A model of its own for each test, gone after it."""
    found = site.make(f"m{next(_numbers)}")
    yield found
    site.namespace.kubectl("delete", "moemodel", found.name, "--ignore-not-found")


def test_a_package_becomes_an_expert_for_each_id_with_a_deployment_and_service_of_its_own(made: Made) -> None:
    experts = made.listed("moeexperts")
    assert [each["metadata"]["name"] for each in experts] == made.groups
    assert [each["spec"]["experts"] for each in experts] == [[0], [1], [2], [3]]
    assert made.replicas() == [0, 0, 0, 0]
    headless = [each["metadata"]["name"] for each in made.listed("services") if each["spec"]["clusterIP"] == "None"]
    assert headless == made.groups
    assert conditions(made.namespace, made.name)["PackageReady"][2] == "tiny: 4 experts in 2 layers, top-2"


def test_kubectl_get_moe_says_how_it_stands(made: Made) -> None:
    lines = [line.split() for line in made.namespace.kubectl("get", "moemodels", made.name).splitlines()]
    assert lines[0] == ["NAME", "EXPERTS", "ROUTERS", "AVAILABLE", "REASON", "AGE"]
    assert lines[1][:5] == [made.name, "0/4", "0/0", "False", "ExpertsMissing"]
    lines = [line.split() for line in made.namespace.kubectl("get", "moeexperts", made.groups[3]).splitlines()]
    assert lines[0] == ["NAME", "MODEL", "EXPERTS", "READY", "VERSION", "LOAD", "AGE"]
    assert lines[1][:4] == [made.groups[3], made.name, "3", "0/0"]


def test_an_object_takes_at_most_three_writes_until_it_is_right(site: Site) -> None:
    before = {**site.acting.metrics(), "since": site.acting.settled()}
    site.make("counted", experts={"replicas": 0, "perPod": 1})
    site.acting.settled()
    by_kind: dict[str, float] = {}
    for name, value in site.acting.metrics().items():
        if name.startswith("moe_operator_writes_total"):
            kind = name.split('kind="')[1].split('"')[0]
            by_kind[kind] = by_kind.get(kind, 0) + value - before.get(name, 0)
    site.namespace.kubectl("delete", "moemodel", "counted")
    counts = {"MoEExpert": 4, "Deployment": 5, "Service": 5, "PodDisruptionBudget": 5}
    assert {kind: by_kind[kind] / count <= 3 for kind, count in counts.items()} == dict.fromkeys(counts, True), by_kind


def test_scaling_one_expert_moves_it_alone_until_its_owner_gives_it_back(made: Made) -> None:
    made.namespace.kubectl("scale", f"moeexpert/{made.groups[3]}", "--replicas=2")
    wait_until(lambda: made.replicas() == [0, 0, 0, 2], "the Deployment does not follow", 30)
    made.wish(experts={"replicas": 1})
    wait_until(lambda: made.replicas() == [1, 1, 1, 2], "the others do not follow the model", 30)
    nobodys = '[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]'
    made.namespace.kubectl("patch", "moeexpert", made.groups[3], "--type=json", "-p", nobodys)
    wait_until(lambda: made.replicas() == [1, 1, 1, 1], "the model does not take the group back", 30)


def test_an_expert_scaled_to_nothing_stays_there_though_the_model_wishes_for_one(made: Made) -> None:
    made.wish(experts={"gpus": 1, "replicas": 1})  # pods that wait for a node cost nothing
    wait_until(lambda: made.replicas() == [1, 1, 1, 1], "the groups do not follow the model", 30)
    made.namespace.kubectl("scale", f"moeexpert/{made.groups[3]}", "--replicas=0")
    wait_until(lambda: made.replicas() == [1, 1, 1, 0], "the Deployment does not follow", 30)
    made.acting.settled()
    assert made.namespace.get("moeexpert", made.groups[3])["spec"]["replicas"] == 0


def test_an_experts_deployment_follows_its_moeexpert_and_nobody_else(made: Made) -> None:
    made.namespace.kubectl("scale", f"deployment/{made.groups[1]}", "--replicas=3")
    wait_until(lambda: made.replicas() == [0, 0, 0, 0], "the Deployment stays scaled", 30)


def test_routers_that_somebody_scaled_stay_theirs(made: Made) -> None:
    made.acting.settled()
    made.namespace.kubectl("scale", f"deployment/{made.name}-router", "--replicas=1")
    made.acting.settled()
    assert made.namespace.get("deployment", f"{made.name}-router")["spec"]["replicas"] == 1


def test_what_is_deleted_or_changed_by_hand_comes_back(made: Made) -> None:
    service, budget = made.groups[2], made.groups[1]
    made.namespace.kubectl("delete", "service", service)
    made.namespace.kubectl("patch", "pdb", budget, "--type=merge", "-p", '{"spec":{"maxUnavailable":0}}')
    wait_until(lambda: made.namespace.exists("service", service), "the Service does not come back", 30)
    wait_until(lambda: made.namespace.get("pdb", budget)["spec"]["maxUnavailable"] == 1, "the budget stays", 30)


def test_a_change_of_the_image_is_one_write_a_deployment(made: Made) -> None:
    def images() -> set[str]:
        pods = [each["spec"]["template"]["spec"] for each in made.listed("deployments")]
        return {pod["containers"][0]["image"] for pod in pods}

    made.acting.settled()
    name = 'moe_operator_writes_total{kind="Deployment",verb="apply"}'
    before = made.acting.metrics()[name]
    made.wish(image="moe.dev/x:2")
    wait_until(lambda: images() == {"moe.dev/x:2"}, "not all Deployments have it", 30)
    made.acting.settled()
    assert made.acting.metrics()[name] - before == len(made.groups) + 1


def test_pods_that_find_no_room_are_said_with_the_schedulers_words(made: Made) -> None:
    made.wish(experts={"gpus": 1})
    made.namespace.kubectl("scale", f"moeexpert/{made.groups[0]}", "--replicas=1")
    said = until_condition(made.namespace, "Degraded", "PodsFailing", name=made.name)
    assert "Insufficient nvidia.com/gpu" in said
    assert f"{made.groups[0]}-" in said


def test_a_deleted_model_leaves_nothing_and_its_neighbour_alone(site: Site, made: Made) -> None:
    other = site.make("neighbour", experts={"perPod": 2, "replicas": 0})
    assert len(other.listed("moeexperts")) == 2
    site.namespace.kubectl("delete", "moemodel", "neighbour")
    wait_until(lambda: not everything(site.namespace, "neighbour"), "something stays", 60)
    assert made.replicas() == [0, 0, 0, 0]
    assert site.namespace.exists("pvc", CLAIM)


def test_a_name_that_is_taken_stays_its_owners_and_is_said(site: Site) -> None:
    site.namespace.apply(workloads.service("robbed-001", 80))
    site.namespace.apply(idle_model("robbed"))
    said = until_condition(site.namespace, "Degraded", "WriteRefused", name="robbed")
    assert "Service robbed-001: the name is taken" in said
    assert site.namespace.get("service", "robbed-001")["spec"]["selector"] == {"app": "robbed-001"}
    site.namespace.kubectl("delete", "moemodel/robbed", "service/robbed-001")


def test_wishes_that_do_not_fit_the_package_are_said(site: Site) -> None:
    site.namespace.apply(idle_model("unfit", experts={"perPod": 9}))
    said = until_condition(site.namespace, "Degraded", "WishesUnfit", name="unfit")
    assert "experts_per_group is 9; want 1 to 4" in said
    site.namespace.kubectl("delete", "moemodel", "unfit")


def test_an_image_that_can_not_be_had_is_said_and_a_right_one_is_enough(site: Site) -> None:
    site.namespace.apply(idle_model("typed", image="moe.dev/typo:1", imagePullPolicy="Never"))
    said = until_condition(site.namespace, "PackageReady", "InspectionFailing", name="typed")
    assert "ErrImageNeverPull" in said
    site.namespace.apply(idle_model("typed", image=site.namespace.kube.image, imagePullPolicy="Never"))
    until_condition(site.namespace, "Progressing", "AsWished", name="typed", patience_s=120)
    site.namespace.kubectl("delete", "moemodel", "typed")


def test_a_folder_without_a_package_is_said_with_what_is_there(site: Site) -> None:
    body = idle_model("lost")
    body["spec"]["package"]["subPath"] = "nowhere"
    site.namespace.apply(body)
    said = until_condition(site.namespace, "PackageReady", "PackageUnusable", name="lost")
    assert "there is no folder nowhere; the place where it should be holds demo" in said
    site.namespace.kubectl("delete", "moemodel", "lost")


def test_a_checkpoint_in_the_claim_becomes_a_package_by_a_job(site: Site, tmp_path: Path) -> None:
    put_package(site.namespace, write_checkpoint("qwen2_moe", tmp_path / "checkpoint"), folder="checkpoint")
    body = idle_model("converted")
    body["spec"]["package"] = {"claim": CLAIM, "subPath": "made", "source": "checkpoint"}
    site.namespace.apply(body)
    until_condition(site.namespace, "PackageReady", "Converting", name="converted")
    said = until_condition(site.namespace, "PackageReady", "Read", name="converted", patience_s=START_S)
    assert said.startswith("made: ")
    site.namespace.kubectl("delete", "moemodel", "converted")


def test_a_source_that_can_not_be_converted_is_said_with_the_converters_words(site: Site, tmp_path: Path) -> None:
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "notes.txt").write_text("no checkpoint\n")
    put_package(site.namespace, tmp_path / "stray", folder="stray")
    body = idle_model("unsound")
    body["spec"]["package"] = {"claim": CLAIM, "subPath": "unmade", "source": "stray"}
    site.namespace.apply(body)
    said = until_condition(site.namespace, "PackageReady", "ConversionFailed", name="unsound", patience_s=START_S)
    assert "stray can't be converted: " in said
    assert "config.json" in said
    site.namespace.kubectl("delete", "moemodel", "unsound")


def test_an_expert_without_a_model_is_told_so(site: Site) -> None:
    spec = {"model": "nobody", "experts": [1]}
    stray = {"apiVersion": "moe.dev/v1alpha1", "kind": "MoEExpert", "metadata": {"name": "stray"}, "spec": spec}
    site.namespace.apply(stray)

    def told() -> bool:
        status = site.namespace.get("moeexpert", "stray").get("status", {})
        return [each["reason"] for each in status.get("conditions", [])] == ["NoModel"]

    wait_until(told, "it is told nothing", 30)


def test_an_operator_that_starts_anew_beside_a_settled_model_writes_nothing(
    namespace: Namespace, package: Path, tmp_path: Path
) -> None:
    put_package(namespace, package)
    with operator(namespace, tmp_path) as first:
        Site(namespace, first).make("demo")
        first.settled()
        assert first.end() == 0
    with operator(namespace, tmp_path) as second:
        wait_until(second.leading, "it does not act", 60, every_s=0.5)
        wait_until(lambda: second.metrics()["moe_operator_models"] == 1, "it looks at no model", 60, every_s=0.5)
        assert second.settled() == 0


def test_a_missing_claim_is_said_and_its_arrival_is_enough(namespace: Namespace, package: Path, tmp_path: Path) -> None:
    with operator(namespace, tmp_path):
        namespace.apply(idle_model())
        said = until_condition(namespace, "Degraded", "ClaimMissing")
        assert f"there is no PersistentVolumeClaim {CLAIM}" in said
        put_package(namespace, package)
        until_condition(namespace, "Progressing", "AsWished", patience_s=120)
    reasons = {each["reason"] for each in namespace.list("events") if each["involvedObject"]["kind"] == "MoEModel"}
    assert {"ClaimMissing", "Read"} <= reasons


def test_a_quota_in_the_way_is_said_and_others_go_on(namespace: Namespace, package: Path, tmp_path: Path) -> None:
    put_package(namespace, package)
    with operator(namespace, tmp_path) as acting:
        Site(namespace, acting).make("demo")
        few: Document = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
        namespace.apply({**few, "spec": {"hard": {"services": "7"}}})
        namespace.apply(idle_model("second"))
        assert "exceeded quota: few" in until_condition(namespace, "Degraded", "WriteRefused", name="second")
        assert conditions(namespace)["Degraded"][1] == "NoFault"


def test_of_two_operators_one_acts_and_the_other_takes_over_when_it_is_killed(
    namespace: Namespace, package: Path, tmp_path: Path
) -> None:
    put_package(namespace, package)
    with operator(namespace, tmp_path, "--lease-s=3") as first:
        wait_until(first.leading, "the first does not act", 30)
        with operator(namespace, tmp_path, "--lease-s=3") as second:
            namespace.apply(idle_model())
            until_condition(namespace, "PackageReady", "Read")
            assert not second.leading()
            first.end(kill=True)
            wait_until(second.leading, "the second does not take over", 30)
            until_condition(namespace, "Progressing", "AsWished")


def test_an_operator_that_is_told_to_end_gives_its_turn_back_at_once(namespace: Namespace, tmp_path: Path) -> None:
    with operator(namespace, tmp_path) as first:
        wait_until(first.leading, "it does not act", 30)
        assert first.end() == 0
    lease = namespace.get("lease", "moe-operator")
    assert lease["spec"].get("holderIdentity", "") == ""


def test_an_operator_that_was_killed_amid_its_work_is_followed_by_one_that_finishes_it(
    namespace: Namespace, package: Path, tmp_path: Path
) -> None:
    put_package(namespace, package)
    with operator(namespace, tmp_path, "--lease-s=2") as first:
        namespace.apply(idle_model())
        wait_until(lambda: namespace.exists("moeexpert", "demo-001"), "no expert is made", 60, every_s=0.05)
        first.end(kill=True)
    with operator(namespace, tmp_path, "--lease-s=2"):
        until_condition(namespace, "Progressing", "AsWished", patience_s=90)
    uids = [each["metadata"]["uid"] for each in namespace.list("moeexperts")]
    assert len(uids) == len(set(uids)) == 4
