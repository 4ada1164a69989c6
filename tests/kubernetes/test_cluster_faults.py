"""The test cluster bears what tests do to it: killed processes, killed starts, a neighbour on the same machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.cluster import cgroups, mounts, network, workloads
from support.cluster.api import Document
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster.cluster import Cluster
from support.cluster.places import CHECKOUT

MARK: Document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mark"}, "data": {"a": "kept"}}


@pytest.fixture
def other() -> Iterator[Cluster]:
    """A second cluster, not started; ended after the test."""
    cluster = Cluster(f"other-{os.getpid()}")
    yield cluster
    cluster.down()


@pytest.mark.parametrize("process", ["etcd", "apiserver"])
def test_a_killed_process_that_is_started_again_has_kept_everything(
    own_cluster: Cluster, kube: Kube, namespace: Namespace, process: str
) -> None:
    namespace.apply(MARK, workloads.deployment("web", kube.image, ["sleep", "infinity"]))
    namespace.roll_out("deployment/web")
    (before,) = namespace.list("pods")

    own_cluster.kill(process)
    own_cluster.up()

    (after,) = namespace.list("pods")
    assert namespace.get("configmap", "mark")["data"] == {"a": "kept"}
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_node_whose_every_process_was_killed_runs_new_pods_again(
    own_cluster: Cluster, kube: Kube, namespace: Namespace
) -> None:
    for process in ("kubelet", "proxy", "dns", "containerd"):
        own_cluster.kill(process)

    own_cluster.up()

    namespace.apply(workloads.deployment("web", kube.image, ["sleep", "infinity"]))
    namespace.roll_out("deployment/web")


def test_two_clusters_live_side_by_side(own_cluster: Cluster, kube: Kube, namespace: Namespace, other: Cluster) -> None:
    other.up()
    neighbour = Kube(other.kubeconfig, kube.kubectl_program, kube.helm_program, kube.image)
    with neighbour.new_namespace(namespace.name) as beside:
        for each in (namespace, beside):
            each.apply(workloads.deployment("web", kube.image, ["sleep", "infinity"]))
            each.roll_out("deployment/web")
        beside.apply(MARK)

        assert not namespace.exists("configmap", "mark")

    other.down()

    (pod,) = namespace.list("pods")
    assert pod["status"]["containerStatuses"][0]["ready"]
    assert own_cluster.states()["kubelet"]


def test_a_start_that_is_killed_again_and_again_ends_up_whole(other: Cluster) -> None:
    for process in ("etcd", "containerd"):
        start_and_kill_at(other, process)

    other.up()

    assert "node1   Ready" in other.kubectl("get", "nodes")


def test_ending_a_cluster_that_is_half_started_leaves_nothing(other: Cluster) -> None:
    start_and_kill_at(other, "kubelet")

    other.down()

    assert not other.places.root.exists()
    assert not network.path_of(other.places.namespace).exists()
    assert not cgroups.pids(other.places.cgroup)
    assert not list(cgroups.MOUNT.glob(f"*/{other.places.cgroup}"))
    assert not mounts.below(other.places.root)


def start_and_kill_at(cluster: Cluster, process: str) -> None:
    """Ends `up` with SIGKILL as soon as it has started that process."""
    argv = [sys.executable, "-m", "tests.support.cluster", "up", "--name", cluster.places.name]
    with subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.DEVNULL) as starting:
        wait_until(lambda: cluster.processes.pid(process) is not None, f"{process} does not start", 60, every_s=0.01)
        starting.send_signal(signal.SIGKILL)
    assert starting.returncode == -signal.SIGKILL
