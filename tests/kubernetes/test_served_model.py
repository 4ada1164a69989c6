"""A model that the chart has put on a real cluster answers as transformers does, and goes on while its parts change,
end, or lose the control plane.

Every test disturbs it under a steady load, of which each request must be answered with transformers' tokens. Those that
break the cluster itself go in by its Service, past the API server and the kubelet that `port-forward` needs.
"""

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from support.cluster import node
from support.cluster.api import Document
from support.cluster.client import Kube, wait_until
from support.cluster.cluster import Cluster
from support.cluster.errors import ClusterError
from support.cluster_models import START_S, until_condition
from support.exact_models import ExactModel, make_exact_model
from support.load import Load
from support.served_model import Served, served_model
from support.streams import Clients, request

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""

GROUP, OTHER_GROUP = "demo-g000", "demo-g001"
OPERATOR = "app.kubernetes.io/component=operator"
AWAY_S = 20
"""How long a part of the control plane stays away."""


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> ExactModel:
    return make_exact_model("qwen2_moe", torch.float32, tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def served(kube: Kube, exact: ExactModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_model(kube, f"served-{os.getpid()}", exact, tmp_path_factory.mktemp("release")) as model:
        yield model


@pytest.fixture
def by_service(served: Served, own_cluster: Cluster) -> Iterator[Clients]:
    """Clients that need only the router's pod and the rules that kube-proxy has written."""
    address = served.namespace.get("service", "demo")["spec"]["clusterIP"]
    with own_cluster.reaching(address, 50051) as here:
        clients = Clients(here)
        yield clients
        clients.close()


def test_a_model_on_a_cluster_answers_as_transformers_does_in_one_process(served: Served) -> None:
    served.check(served.ask())


def test_an_expert_is_scaled_to_three_and_back_under_load_without_a_lost_request(served: Served) -> None:
    with served.load():
        served.scale(OTHER_GROUP, 3)
        served.scale(OTHER_GROUP, 1)


def test_a_pod_of_a_group_with_two_is_deleted_under_load_without_a_lost_request(served: Served) -> None:
    served.scale(GROUP, 2)
    deleted = min(served.names("expert", GROUP))
    with served.load():
        served.namespace.kubectl("delete", "pod", deleted, "--wait=false")
        until_two_without(served, deleted)


def test_a_container_of_a_group_with_two_is_killed_under_load_without_a_lost_request(
    served: Served, own_cluster: Cluster
) -> None:
    served.scale(GROUP, 2)
    with served.load():
        kill_container_and_wait(served, own_cluster, min(served.names("expert", GROUP)))


def test_a_drain_meets_the_disruption_budget_under_load_without_a_lost_request(
    served: Served, own_cluster: Cluster
) -> None:
    served.scale(GROUP, 2)
    before = served.names("expert", GROUP)
    with served.load():
        with drained_of(own_cluster, f"moe.dev/group={GROUP}") as refusal:
            evicted = before - served.names("expert", GROUP)
        served.until_ready(GROUP, "2/2")
    assert "violate the pod's disruption budget" in refusal
    assert len(evicted) == 1


def test_all_experts_are_restarted_under_load_without_a_lost_request(served: Served) -> None:
    before = served.names("expert")
    with served.load():
        served.namespace.kubectl("rollout", "restart", "deployment", "-l", "moe.dev/component=expert")
        served.until_replaced("expert", before)


def test_an_upgrade_that_changes_all_experts_goes_through_under_load_without_a_lost_request(served: Served) -> None:
    before = served.names("expert")
    with served.load():
        served.upgrade("110m")
        served.until_replaced("expert", before)
    requests = [each["spec"]["containers"][0]["resources"]["requests"]["cpu"] for each in served.pods("expert")]
    assert set(requests) == {"110m"}


def test_a_killed_operator_is_not_missed_and_its_successor_does_what_was_wished_meanwhile(served: Served) -> None:
    served.scale(OTHER_GROUP, 1)
    with served.load():
        served.namespace.kubectl("delete", "pod", "-l", OPERATOR, "--grace-period=0", "--force")
        served.scale(OTHER_GROUP, 2)
        served.scale(OTHER_GROUP, 1)


def test_a_model_serves_while_its_operator_is_away(served: Served) -> None:
    served.namespace.kubectl("scale", "deployment/moe-operator", "--replicas=0")
    wait_until(lambda: not served.namespace.list("pods", OPERATOR), "the operator stays", 60)
    served.check(served.ask())
    served.namespace.kubectl("scale", "deployment/moe-operator", "--replicas=1")
    served.namespace.roll_out("deployment/moe-operator", 120)


def test_requests_wait_for_the_only_container_of_a_group_when_it_is_killed(
    served: Served, own_cluster: Cluster, by_service: Clients
) -> None:
    served.scale(OTHER_GROUP, 1)
    (only,) = served.names("expert", OTHER_GROUP)
    with served.load(by_service):
        kill_container_and_wait(served, own_cluster, only)


def test_a_group_without_a_pod_is_answered_without_counted_and_told_where_that_is_wished(served: Served) -> None:
    served.set_policy("renormalise")
    served.namespace.kubectl("scale", f"moeexpert/{OTHER_GROUP}", "--replicas=0")
    said = until_condition(served.namespace, "Available", "ServingWithoutExperts", patience_s=60)
    assert f"scaled to 0: {OTHER_GROUP} (kubectl scale moeexpert/{OTHER_GROUP} --replicas=1)" in said
    wait_until(lambda: not served.all_pods("expert", OTHER_GROUP), "its pod stays", 60, every_s=0.3)

    answers = served.clients.ask_all([request([token], 4) for token in range(3, 11)])

    finals = [answer.final for answer in answers if answer.final]
    layer_calls = sum(each.layer_calls for final in finals for each in final.degradations)
    assert layer_calls > 0
    assert served.router_metric("moe_router_degradations_total") >= layer_calls
    # a row both of whose experts are in that group has nothing to be renormalised from
    lost = [answer.error.details() for answer in answers if answer.error]
    assert [each for each in lost if OTHER_GROUP not in each] == []


def test_a_group_that_returns_is_told_and_answers_are_exact_again(served: Served) -> None:
    served.set_policy("wait")
    served.namespace.kubectl("scale", f"moeexpert/{OTHER_GROUP}", "--replicas=0")
    said = until_condition(served.namespace, "Available", "ExpertsMissing", patience_s=60)
    assert said.startswith("requests wait for them, 120 s at most: 1 of 4 expert groups have no ready pod")
    served.scale(OTHER_GROUP, 1)
    until_condition(served.namespace, "Available", "Serving", patience_s=60)
    served.check(served.ask())


@pytest.mark.parametrize("process", ["kubelet", "apiserver"])
def test_a_part_of_the_control_plane_is_away_under_load_without_a_lost_request(
    served: Served, own_cluster: Cluster, by_service: Clients, process: str
) -> None:
    """The last ones here: what the other tests go in by has ended with it."""
    with served.load(by_service) as load:
        own_cluster.kill(process)
        try:
            answered_during(load, AWAY_S)
        finally:
            own_cluster.start(process)
        answered_during(load, AWAY_S / 2)
        served.scale(OTHER_GROUP, 2)
        served.scale(OTHER_GROUP, 1)


def until_two_without(served: Served, gone: str) -> None:
    """Waits until that pod has come to its end and the group has two ready ones."""

    def replaced() -> bool:
        pods = served.all_pods("expert", GROUP)
        containers = [each["status"].get("containerStatuses", []) for each in pods]
        ready = [bool(each) and each[0]["ready"] for each in containers]
        return ready == [True, True] and gone not in [each["metadata"]["name"] for each in pods]

    wait_until(replaced, f"{gone} stays, or nothing takes its place", START_S, every_s=0.3)


def kill_container_and_wait(served: Served, cluster: Cluster, pod: str) -> None:
    """Until the kubelet has started it again and it is ready."""

    def container() -> Document:
        return served.namespace.get("pod", pod)["status"]["containerStatuses"][0]

    before = container()
    cluster.kill_container(before["containerID"])

    def back() -> bool:
        now = container()
        return now["restartCount"] > before["restartCount"] and now["ready"]

    wait_until(back, f"the container of {pod} stays away", START_S, every_s=0.3)


def answered_during(load: Load, seconds: float) -> None:
    """Lets the time pass, and sees that requests were answered in it."""
    before = load.answered()
    threading.Event().wait(seconds)
    assert load.answered() > before


@contextlib.contextmanager
def drained_of(cluster: Cluster, selector: str) -> Iterator[str]:
    """The only node, drained of some pods until kubectl gives up; what it said. It takes pods again after the block."""
    try:
        chosen = [f"--pod-selector={selector}", "--delete-emptydir-data", "--timeout=15s"]
        with pytest.raises(ClusterError) as caught:
            cluster.kubectl("drain", node.NAME, *chosen)
        yield str(caught.value)
    finally:
        cluster.kubectl("uncordon", node.NAME)
