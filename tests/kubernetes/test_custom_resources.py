"""What the API server takes of the custom resources and what it refuses, with which words."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from support.cluster.client import Kube, Namespace
from support.cluster.errors import ClusterError
from support.cluster_models import model
from support.discovered import install_definitions

SAMPLES = sorted((Path(__file__).parents[2] / "k8s/samples").glob("*.yaml"))
Body = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def definitions(kube: Kube) -> None:
    install_definitions(kube)


@pytest.fixture(scope="module")
def shared(kube: Kube) -> Iterator[Namespace]:
    """For what leaves nothing behind."""
    with kube.new_namespace(f"refusals-{os.getpid()}") as made:
        yield made


def refused(namespace: Namespace, body: Body) -> str:
    """What the API server says."""
    with pytest.raises(ClusterError) as caught:
        namespace.apply(body)
    return str(caught.value)


def expert(**spec: Any) -> Body:
    metadata = {"name": "demo-003"}
    return {"apiVersion": "moe.dev/v1alpha1", "kind": "MoEExpert", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("sample", SAMPLES, ids=[each.stem for each in SAMPLES])
def test_every_sample_is_taken(shared: Namespace, sample: Path) -> None:
    shared.kubectl("apply", "--server-side", "--dry-run=server", "-f", str(sample))


WRONG_MODELS = {
    "no claim": ({"package": {"subPath": "demo"}}, 'missing required field "claim"'),
    "a claim's name": ({"package": {"claim": "Not A Name"}}, "spec.package.claim: Invalid value"),
    "a path upwards": ({"package": {"claim": "models", "subPath": "../etc"}}, "spec.package.subPath: Invalid value"),
    "an absolute path": ({"package": {"claim": "models", "subPath": "/etc"}}, "spec.package.subPath: Invalid value"),
    "a source without a folder": (
        {"package": {"claim": "models", "source": "demo"}},
        "a folder of its own; set subPath",
    ),
    "a conversion of nothing": (
        {"package": {"claim": "models", "conversion": {"limits": {"cpu": "1"}}}},
        "without source leave it out",
    ),
    "an unknown field": ({"autoscaling": {}}, 'unknown field "autoscaling"'),
    "a field of later": ({"experts": {"canary": {}}}, 'unknown field "canary"'),
    "no experts in a pod": ({"experts": {"perPod": 0}}, "spec.experts.perPod.*greater than or equal to 1"),
    "too many replicas": ({"experts": {"replicas": 65}}, "spec.experts.replicas.*less than or equal to 64"),
    "negative routers": ({"router": {"replicas": -1}}, "spec.router.replicas.*greater than or equal to 0"),
    "too many GPUs": ({"experts": {"gpus": 17}}, "spec.experts.gpus.*less than or equal to 16"),
    "no quantity": ({"router": {"resources": {"limits": {"memory": "much"}}}}, "spec.router.resources.limits.memory"),
    "an unknown policy": (
        {"routing": {"missingExpert": {"policy": "guess"}}},
        'Unsupported value: "guess": supported values: "wait", "renormalise", "fail"',
    ),
    "a limit below its request": (
        {"experts": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "500m"}}}},
        "limits.cpu is below requests.cpu; raise the limit",
    ),
    "less memory than asked for": (
        {"router": {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}},
        "limits.memory is below requests.memory; raise the limit",
    ),
    "embedded aggregators": (
        {"aggregator": {"placement": "embedded", "replicas": 2}},
        "an embedded aggregator has no pods of its own",
    ),
    "a drop of nothing": ({"routing": {"strategy": "drop"}}, "set topK to how many are to stay"),
    "fewer than no experts": ({"routing": {"topK": -1}}, "spec.routing.topK.*greater than or equal to 0"),
    "a late second replica": (
        {"routing": {"layerTimeoutSeconds": 1, "hedgeAfterSeconds": 2}},
        "hedgeAfterSeconds has to be below layerTimeoutSeconds",
    ),
    "a toleration of nothing": (
        {"router": {"tolerations": [{"operator": "Equal"}]}},
        "without a key the operator has to be Exists",
    ),
    "a toleration of anything with a value": (
        {"router": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
        "operator Exists compares no value; leave value out",
    ),
    "seconds without effect": (
        {"router": {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 3}]}},
        "tolerationSeconds needs effect NoExecute",
    ),
}


@pytest.mark.parametrize(("spec", "words"), WRONG_MODELS.values(), ids=WRONG_MODELS)
def test_a_wrong_wish_is_refused_with_its_field_and_reason(shared: Namespace, spec: Body, words: str) -> None:
    body = model()
    body["spec"] |= spec
    with pytest.raises(ClusterError, match=words):
        shared.apply(body)


WRONG_NAMES = {
    "demo-003": "must not end like the name of one of its parts",
    "demo-g001": "must not end like the name of one of its parts",
    "demo-router": "must not end like the name of one of its parts",
    "3demo": "begins with a letter",
    "de.mo": "holds only a-z, 0-9 and -",
    "d" * 41: "at most 40 characters",
}


@pytest.mark.parametrize(("name", "words"), WRONG_NAMES.items())
def test_a_name_that_its_parts_could_not_bear_is_refused(shared: Namespace, name: str, words: str) -> None:
    assert words in refused(shared, model(name))


@pytest.mark.parametrize("name", ["d", "d" * 40, "demo-03", "demo-12-b", "gpt-oss-20b"])
def test_other_names_are_taken(shared: Namespace, name: str) -> None:
    shared.apply(model(name))
    assert shared.exists("moemodel", name)


CHANGES = {
    "the claim": ({"package": {"claim": "others", "subPath": "demo"}}, "package can't be changed"),
    "the folder": ({"package": {"claim": "models", "subPath": "other"}}, "package can't be changed"),
    "the grouping": ({"experts": {"perPod": 2}}, "perPod can't be changed; .* make another MoEModel"),
}


@pytest.mark.parametrize(("spec", "words"), CHANGES.values(), ids=CHANGES)
def test_what_would_mix_two_models_can_not_be_changed(shared: Namespace, spec: Body, words: str) -> None:
    body = model("fixed")
    shared.apply(body)
    changed = deepcopy(body)
    changed["spec"] |= spec
    with pytest.raises(ClusterError, match=words):
        shared.apply(changed)


def test_everything_else_can_be_changed_and_defaults_are_filled_in(namespace: Namespace) -> None:
    namespace.apply(model())
    namespace.apply(model(image="registry/moe:2", experts={"replicas": 3}, routing={"layerTimeoutSeconds": 5}))
    spec = namespace.get("moemodel", "demo")["spec"]
    assert (spec["experts"]["replicas"], spec["experts"]["perPod"], spec["routing"]["missingExpert"]) == (
        3,
        1,
        {"policy": "wait"},
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"model": "demo"}, 'missing required field "experts"'),
        ({"model": "demo", "experts": []}, "an expert group holds at least one expert"),
        ({"model": "demo", "experts": [-1]}, "greater than or equal to 0"),
        ({"model": "demo", "experts": [1], "replicas": 65}, "less than or equal to 64"),
    ],
)
def test_a_wrong_expert_is_refused(shared: Namespace, spec: Body, words: str) -> None:
    assert words in refused(shared, expert(**spec))


def test_an_experts_ids_stay(namespace: Namespace) -> None:
    namespace.apply(expert(model="demo", experts=[3]))
    assert "experts can't be changed" in refused(namespace, expert(model="demo", experts=[4]))


def test_an_expert_is_scaled_by_kubectl_and_it_shows_by_whom(namespace: Namespace) -> None:
    namespace.apply(expert(model="demo", experts=[3], replicas=1))
    namespace.kubectl("scale", "moeexpert/demo-003", "--replicas=2")
    raw = namespace.kubectl("get", "moeexpert", "demo-003", "-o", "json", "--show-managed-fields")
    owners = [
        each["manager"]
        for each in json.loads(raw)["metadata"]["managedFields"]
        if "f:replicas" in each["fieldsV1"].get("f:spec", {})
    ]
    assert (json.loads(raw)["spec"]["replicas"], owners) == (2, ["kubectl"])


def test_kubectl_explains_fields_and_lists_both_kinds_as_moe(namespace: Namespace) -> None:
    namespace.apply(model(), expert(model="demo", experts=[3]))
    assert "until the layer's time is up" in namespace.kubectl("explain", "moemodel.spec.routing.missingExpert.policy")
    listed = namespace.kubectl("get", "moe", "-o", "name").split()
    assert listed == ["moeexpert.moe.dev/demo-003", "moemodel.moe.dev/demo"]


def install(kube: Kube) -> str:
    """What the chart's Job runs, as the cluster's administrator."""
    command = [sys.executable, "-m", "moe.operator.install"]
    environ = {**os.environ, "KUBECONFIG": str(kube.kubeconfig)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


def annotate(kube: Kube, **annotations: str) -> None:
    words = [f"moe.dev/{name}={value}" for name, value in annotations.items()]
    kube.kubectl("annotate", "crd/moeexperts.moe.dev", "--overwrite", *words)


def test_definitions_go_up_to_the_images_version_and_never_back(kube: Kube) -> None:
    annotate(kube, version="9.0.0", schema="newer")
    assert "moeexperts.moe.dev is of version 9.0.0, newer than 0.1.0; it stays" in install(kube)
    annotate(kube, version="0.0.9", schema="older")
    assert "moeexperts.moe.dev is of version 0.1.0\n" in install(kube)
    assert "moeexperts.moe.dev is of version 0.1.0 already" in install(kube)
