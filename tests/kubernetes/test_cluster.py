"""The test cluster is a Kubernetes that deserves the name: what the other tests of this folder rely on."""

import pytest
from support.cluster import workloads
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster.errors import ClusterError

PORT = 8080
SERVER = ["python", "-m", "http.server", str(PORT), "--directory", "/tmp"]
FETCH = """
import sys, time, urllib.error, urllib.request
until = time.monotonic() + 20
while True:
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=5).status)
        break
    except urllib.error.URLError:
        if time.monotonic() > until:
            raise
        time.sleep(0.1)
"""
"""Asks until it is answered: a pod is ready a moment before kube-proxy has written its Service's rules."""


def test_a_deployment_of_two_restricted_pods_rolls_out(kube: Kube, namespace: Namespace) -> None:
    namespace.apply(workloads.deployment("web", kube.image, SERVER, replicas=2, port=PORT))

    namespace.roll_out("deployment/web")

    assert namespace.get("deployment", "web")["status"]["readyReplicas"] == 2


def test_a_pod_that_asks_for_root_is_refused(kube: Kube, namespace: Namespace) -> None:
    document = workloads.pod("rooted", kube.image, ["sleep", "infinity"])
    document["spec"]["securityContext"]["runAsUser"] = 0

    with pytest.raises(ClusterError, match='violates PodSecurity "restricted'):
        namespace.apply(document)


def test_a_services_name_leads_to_its_pods(kube: Kube, namespace: Namespace) -> None:
    namespace.apply(workloads.deployment("web", kube.image, SERVER, port=PORT), workloads.service("web", PORT))
    namespace.roll_out("deployment/web")

    url = f"http://web.{namespace.name}.svc.cluster.local:{PORT}/"
    said = namespace.kubectl("exec", "deployment/web", "--", "python", "-c", FETCH, url)

    assert said.strip() == "200"


def test_exec_runs_as_the_pods_user_and_logs_show_its_output(kube: Kube, namespace: Namespace) -> None:
    namespace.apply(workloads.pod("speaker", kube.image, ["sh", "-c", "echo here I am; exec sleep infinity"]))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/speaker", "--timeout=30s")

    user = namespace.kubectl("exec", "speaker", "--", "id", "-u")

    assert int(user) > 0
    assert namespace.kubectl("logs", "speaker") == "here I am\n"


def test_a_pod_runs_the_projects_own_command(kube: Kube, namespace: Namespace) -> None:
    namespace.apply(workloads.pod("moe", kube.image, ["moe", "version"], restart="Never"))

    namespace.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/moe", "--timeout=60s", timeout_s=70)

    assert "moe" in namespace.kubectl("logs", "moe")


def test_what_one_pod_writes_into_a_claim_another_reads(kube: Kube, namespace: Namespace) -> None:
    writer = workloads.pod("writer", kube.image, ["sh", "-c", "echo kept >/data/x"], claim="data", restart="Never")
    namespace.apply(workloads.claim("data"), writer)
    namespace.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/writer", "--timeout=30s")

    namespace.apply(workloads.pod("reader", kube.image, ["cat", "/data/x"], claim="data", restart="Never"))
    namespace.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/reader", "--timeout=30s")

    assert namespace.kubectl("logs", "reader") == "kept\n"


def test_a_deleted_claims_volume_goes_too(kube: Kube, namespace: Namespace) -> None:
    namespace.apply(workloads.claim("data"))
    namespace.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=30s")
    volume = namespace.get("pvc", "data")["spec"]["volumeName"]

    namespace.kubectl("delete", "pvc", "data")

    wait_until(
        lambda: not kube.kubectl("get", "pv", volume, "--ignore-not-found", "-o", "name"), f"volume {volume} stays", 30
    )
