"""Routers and aggregators follow a model in a cluster: pods that come and go, wishes, an API server that is away."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moe.discovery.cluster import ClusterDirectory
from moe.discovery.cluster_client import ClusterClient
from moe.discovery.cluster_watch import GoneError, Kind
from moe.discovery.directory import ExpertReplica, RoutingWishes
from moe.discovery.figures import readings
from support import discovered
from support.cluster import kubeconfig
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster.cluster import Cluster

MODEL, GROUP = "demo", "demo-003"
PATIENCE_S = 60.0

Follow = Callable[[], ClusterDirectory]


@pytest.fixture(scope="module")
def definitions(kube: Kube) -> None:
    discovered.install_definitions(kube)


@pytest.fixture
def follow(definitions: None, kube: Kube, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """Opens directories of the model in the test's namespace, as the cluster's administrator."""
    opened: list[ClusterDirectory] = []
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))

    def start() -> ClusterDirectory:
        opened.append(ClusterDirectory(namespace.name, MODEL))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_new_replica_is_there_within_a_second_of_being_ready(
    follow: Follow, kube: Kube, namespace: Namespace
) -> None:
    directory = follow()
    pod = start_group(kube, namespace)
    until(lambda: listed(directory, pod) is not None, "the pod that is not ready is not listed")
    assert not ready(directory, pod)

    make_ready(namespace, pod)
    namespace.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=30s", timeout_s=40)

    within(1.0, lambda: ready(directory, pod))
    replica = listed(directory, pod)
    assert replica is not None
    assert (replica.group, replica.experts) == (GROUP, (3, 4))


def test_a_leaving_replica_is_not_ready_within_a_second_of_its_deletion(
    follow: Follow, kube: Kube, namespace: Namespace
) -> None:
    directory = follow()
    pod = start_group(kube, namespace)
    make_ready(namespace, pod)
    until(lambda: ready(directory, pod), "the pod does not become ready")

    namespace.kubectl("delete", "pod", pod, "--wait=false")

    within(1.0, lambda: not ready(directory, pod))
    until(lambda: listed(directory, pod) is None, "the pod that is gone stays listed")


def test_an_edit_of_the_models_routing_is_heeded_within_two_seconds(follow: Follow, namespace: Namespace) -> None:
    namespace.apply(discovered.model(MODEL))
    directory = follow()
    until(lambda: directory.wishes().missing_policy == "wait", "the defaults are not seen")

    edit = {"missingExpert": {"policy": "fail"}, "layerTimeoutSeconds": 2.5, "topK": 1, "strategy": "drop"}
    patch = json.dumps({"spec": {"routing": edit}})
    namespace.kubectl("patch", "moemodel", MODEL, "--type=merge", "-p", patch)

    wished = RoutingWishes(missing_policy="fail", topk=1, strategy="drop", layer_timeout_s=2.5, hedge_after_s=0.0)
    within(2.0, lambda: directory.wishes() == wished)


def test_an_api_server_that_is_away_leaves_the_view_and_is_spoken_of(
    follow: Follow, own_cluster: Cluster, kube: Kube, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    directory = follow()
    pod = start_group(kube, namespace)
    make_ready(namespace, pod)
    until(lambda: ready(directory, pod), "the pod does not become ready")

    own_cluster.kill("apiserver")
    try:
        until(lambda: bool(directory.trouble()), "the loss is not noticed")
        assert ready(directory, pod)
        assert "keeping the view" in caplog.text
        assert lost(directory) == 1
    finally:
        own_cluster.start("apiserver")

    until(lambda: not directory.trouble(), "the watch does not come back")
    assert lost(directory) == 0
    namespace.kubectl("delete", "pod", pod, "--wait=false")
    until(lambda: not ready(directory, pod), "what happens afterwards is not seen")


def test_who_may_not_watch_is_told_what_the_role_lacks(
    definitions: None, kube: Kube, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.kubectl("create", "serviceaccount", "nobody")
    token = namespace.kubectl("create", "token", "nobody").strip()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig.with_token(kube.kubeconfig, token, tmp_path / "nobody")))

    directory = ClusterDirectory(namespace.name, MODEL)

    try:
        until(lambda: directory.trouble().count("403") == 3, "the refusals are not told")
        assert "endpointslices: 403" in directory.trouble()
        assert "role of this pod's service account has to allow list and watch" in directory.trouble()
    finally:
        directory.close()


async def test_a_version_that_the_api_server_has_forgotten_is_told_apart(
    definitions: None, kube: Kube, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    client = await ClusterClient.connect(namespace.name)
    try:
        with pytest.raises(GoneError, match="410"):
            async for _ in client.watch(Kind("discovery.k8s.io", "v1", "endpointslices"), "1"):
                pass
    finally:
        await client.close()


def start_group(kube: Kube, namespace: Namespace) -> str:
    """One pod, running and not ready."""
    namespace.apply(discovered.expert(MODEL, GROUP, [3, 4]), *discovered.group_pods(kube.image, MODEL, GROUP))
    until(lambda: len(discovered.pods_of(namespace, GROUP)) == 1, "no pod runs")
    return discovered.pods_of(namespace, GROUP)[0]


def make_ready(namespace: Namespace, pod: str) -> None:
    namespace.kubectl("exec", pod, "--", "touch", discovered.READY_FILE)


def listed(directory: ClusterDirectory, pod: str) -> ExpertReplica | None:
    return next((each for each in directory.current().experts if each.name == pod), None)


def ready(directory: ClusterDirectory, pod: str) -> bool:
    replica = listed(directory, pod)
    return replica is not None and replica.ready


def lost(directory: ClusterDirectory) -> float:
    """What Prometheus is told."""
    (found,) = (each for each in readings(directory) if each.name == "moe_discovery_lost")
    return found.values[""]


def until(condition: Callable[[], bool], complaint: str) -> None:
    wait_until(condition, complaint, PATIENCE_S)


def within(limit_s: float, condition: Callable[[], bool]) -> None:
    """Fails when the condition is not true by then, whatever the machine is busy with."""
    began = time.monotonic()
    wait_until(condition, "it is not so", limit_s, every_s=0.01)
    print(f"took {time.monotonic() - began:.3f} s of {limit_s:g}")
