"""The chart on a real cluster: what it installs, what it may do, how it changes and goes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster.errors import ClusterError
from support.cluster_models import START_S, everything, put_package, until_condition

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "charts/moe")
GROUPED = """
model:
  spec:
    package: {claim: models, subPath: demo}
    router: {resources: {requests: {cpu: 500m, memory: 512Mi}}}
    aggregator: {placement: embedded}
    experts:
      perPod: 4
      resources: {requests: {cpu: 300m, memory: 256Mi}}
"""


@dataclass
class Release:
    """A release of the chart in a namespace."""

    namespace: Namespace
    name: str = "moe"

    def install(self, *flags: str) -> str:
        return self.namespace.helm("install", self.name, CHART, *image(self.namespace.kube), *flags, timeout_s=200)

    def upgrade(self, *flags: str) -> str:
        return self.namespace.helm("upgrade", self.name, CHART, *image(self.namespace.kube), *flags, timeout_s=200)

    def can(self, verb: str, resource: str, *, namespace: str = "") -> bool:
        """Whether the operator's account may do that, by default in its own namespace. resource: as can-i takes it."""
        account = f"system:serviceaccount:{self.namespace.name}:{self.name}-operator"
        place = namespace or self.namespace.name
        command = ["auth", "can-i", verb, *resource.split(), f"--as={account}", "-n", place]
        try:
            return self.namespace.kube.kubectl(*command).strip() == "yes"
        except ClusterError as error:
            if "no" not in str(error):
                raise
            return False


def image(kube: Kube) -> list[str]:
    repository, _, tag = kube.image.rpartition(":")
    return [f"--set=image.repository={repository}", f"--set-string=image.tag={tag}"]


@pytest.fixture
def release(namespace: Namespace) -> Iterator[Release]:
    yield Release(namespace)
    if "moe" in namespace.helm("list", "--short").split():
        namespace.helm("uninstall", "moe", "--wait", "--timeout=90s")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's package, converted as `make demo` does."""
    out = tmp_path_factory.mktemp("store") / "demo"
    subprocess.run([sys.executable, "-m", "moe.cli.main", "convert", "demo", str(out)], check=True, capture_output=True)
    return out


def test_from_a_package_in_a_claim_to_the_first_token_with_the_charts_own_test(
    release: Release, demo: Path, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(GROUPED)
    put_package(release.namespace, demo)
    notes = release.install("--values", str(values))
    assert f"helm -n {release.namespace.name} test moe --logs" in notes
    until_condition(release.namespace, "Available", "Serving", patience_s=START_S)
    said = release.namespace.helm("test", "moe", "--logs", timeout_s=180)
    assert "Phase:          Succeeded" in said
    assert len(said.partition("POD LOGS")[2].split()) > 3, said


def test_a_release_is_upgraded_rolled_back_and_uninstalled(release: Release) -> None:
    release.install("--set=operator.logLevel=warning")
    release.namespace.roll_out("deployment/moe-operator", 120)
    release.upgrade("--set=operator.logLevel=debug,model.name=other")
    release.namespace.roll_out("deployment/moe-operator", 120)
    assert names(release.namespace) == ["other"]
    release.namespace.helm("rollback", "moe", "1", "--wait", "--timeout=120s", timeout_s=130)
    assert names(release.namespace) == ["demo"]
    (container,) = release.namespace.get("deployment", "moe-operator")["spec"]["template"]["spec"]["containers"]
    assert "--log-level=warning" in container["args"]
    release.namespace.helm("uninstall", "moe", "--wait", "--timeout=90s")
    wait_until(lambda: not everything(release.namespace), "something of the model stays", 60)
    left = release.namespace.kubectl(
        "get", "deploy,sa,role,rolebinding,job,lease", "-l", "app.kubernetes.io/name=moe", "-o", "name"
    )
    assert left == ""
    assert "moe.dev" in release.namespace.kube.kubectl("get", "crd", "-o", "name")


def names(namespace: Namespace) -> list[str]:
    return [each["metadata"]["name"] for each in namespace.list("moemodels")]


def test_two_releases_in_two_namespaces_do_not_meet(kube: Kube, release: Release) -> None:
    with kube.new_namespace(f"second-{os.getpid()}") as place:
        second = Release(place)
        release.install()
        second.install()
        for each in (release, second):
            each.namespace.roll_out("deployment/moe-operator", 120)
            until_condition(each.namespace, "PackageReady", "ClaimMissing")
        second.namespace.helm("uninstall", "moe", "--wait", "--timeout=90s")
        assert names(release.namespace) == ["demo"]
        assert release.can("list", "moemodels.moe.dev")
        assert not release.can("list", "moemodels.moe.dev", namespace=place.name)


ALLOWED = [
    ("list", "moemodels.moe.dev"),
    ("create", "moeexperts.moe.dev"),
    ("patch", "moemodels.moe.dev --subresource=status"),
    ("patch", "deployments.apps"),
    ("delete", "services"),
    ("create", "roles.rbac.authorization.k8s.io"),
    ("watch", "pods"),
    ("list", "persistentvolumeclaims"),
    ("create", "events"),
    ("get", "leases.coordination.k8s.io/moe-operator"),
    ("get", "customresourcedefinitions.apiextensions.k8s.io/moemodels.moe.dev"),
]
FORBIDDEN = [
    ("delete", "moemodels.moe.dev"),
    ("patch", "moemodels.moe.dev"),
    ("get", "secrets"),
    ("list", "secrets"),
    ("list", "configmaps"),
    ("create", "pods"),
    ("delete", "pods"),
    ("get", "pods --subresource=log"),
    ("create", "pods --subresource=exec"),
    ("delete", "persistentvolumeclaims"),
    ("escalate", "roles.rbac.authorization.k8s.io"),
    ("bind", "roles.rbac.authorization.k8s.io"),
    ("create", "clusterroles.rbac.authorization.k8s.io"),
    ("get", "leases.coordination.k8s.io/another"),
    ("patch", "customresourcedefinitions.apiextensions.k8s.io/moemodels.moe.dev"),
    ("get", "customresourcedefinitions.apiextensions.k8s.io/others.example"),
    ("list", "nodes"),
    ("list", "namespaces"),
]


def test_the_operator_may_do_what_it_does_and_nothing_else(release: Release) -> None:
    release.install("--set=model.enabled=false")
    may = [f"{verb} {what}" for verb, what in ALLOWED if not release.can(verb, what)]
    may_not = [f"{verb} {what}" for verb, what in FORBIDDEN if release.can(verb, what)]
    elsewhere = [f"{verb} {what}" for verb, what in ALLOWED[:8] if release.can(verb, what, namespace="default")]
    assert (may, may_not, elsewhere) == ([], [], [])


WRONG_VALUES = {
    "an unknown value": ("operator.replica=2", "additional properties 'replica' not allowed"),
    "an unknown group": ("operators.replicas=2", "additional properties 'operators' not allowed"),
    "an unknown wish": ("model.spec.experts.canary=1", "additional properties 'canary' not allowed"),
    "a number out of bounds": ("model.spec.experts.replicas=99", "maximum: got 99, want 64"),
    "a wrong word": ("operator.logLevel=loud", "value must be one of 'debug', 'info', 'warning', 'error'"),
    "a name of a part": ("model.name=Demo", "does not match pattern"),
}


@pytest.mark.parametrize(("setting", "words"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_wrong_value_is_refused_before_anything_is_made(kube: Kube, setting: str, words: str) -> None:
    with pytest.raises(ClusterError) as caught:
        kube.helm("template", "moe", CHART, f"--set={setting}")
    assert words in str(caught.value)


def test_switches_make_what_they_say(kube: Kube) -> None:
    rendered = kube.helm(
        "template",
        "moe",
        CHART,
        "--set=networkPolicy.enabled=true,monitoring.enabled=true,operator.replicas=2,operator.allNamespaces=true",
        "--set=image.pullSecrets={first,second}",
    )
    objects = [each for each in yaml.safe_load_all(rendered) if each]
    kinds = {each["kind"] for each in objects}
    assert {"NetworkPolicy", "PodMonitor", "PodDisruptionBudget", "ClusterRole"} <= kinds
    secrets = [{"name": "first"}, {"name": "second"}]
    operator = next(each for each in objects if each["kind"] == "Deployment")
    model = next(each for each in objects if each["kind"] == "MoEModel")
    assert operator["spec"]["template"]["spec"]["imagePullSecrets"] == secrets
    assert model["spec"]["imagePullSecrets"] == ["first", "second"]


def test_under_the_network_policy_experts_are_dialled_by_their_peers_and_their_metrics_read_by_all(kube: Kube) -> None:
    """By all: the operator, which reads their load there, and scrapers in any namespace."""
    rendered = kube.helm("template", "moe", CHART, "--set=networkPolicy.enabled=true")
    objects = [each for each in yaml.safe_load_all(rendered) if each]
    policy = next(each for each in objects if each["metadata"]["name"].endswith("-experts"))
    open_to = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["spec"]["ingress"]}
    (peers,) = open_to.pop("grpc")
    assert peers["podSelector"]["matchExpressions"][0]["values"] == ["router", "aggregator"]
    assert open_to == {"metrics": None}


def test_plain_manifests_are_those_of_the_chart(kube: Kube) -> None:
    command = [sys.executable, str(ROOT / "charts/render.py"), "--check", "--helm", str(kube.helm_program)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_without_helm_the_plain_manifests_bring_an_operator_up(kube: Kube) -> None:
    text = (ROOT / "k8s/moe.yaml").read_text().replace("moe:0.1.0", kube.image)
    kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "k8s/crds"))
    kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", feed=text)
    try:
        kube.in_namespace("moe").roll_out("deployment/moe-operator", 120)
    finally:
        kube.kubectl("delete", "-f", "-", "--wait=false", feed=text)
