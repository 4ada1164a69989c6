"""A release of the chart as it was before its last change is upgraded to the present one; its model serves on."""

import os
from pathlib import Path

import pytest
import torch
import yaml
from moe.operator.naming import SCHEMA_ANNOTATION
from moe.operator.resources import definitions
from support.cluster.api import Document
from support.cluster.client import Kube
from support.cluster.cluster import Cluster
from support.cluster_models import START_S
from support.exact_models import make_exact_model
from support.served_model import served_model

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""

PREVIOUS = Path(__file__).parent / "previous_chart" / "moe"
"""Kept there by charts/previous.py, which says why."""


@pytest.fixture
def untouched(own_cluster: Cluster, kube: Kube) -> Kube:
    """A cluster without definitions. It has to be this test's own: with them go all models there are."""
    del own_cluster
    kube.kubectl("delete", "crd", "--ignore-not-found", *(each["metadata"]["name"] for each in definitions()))
    return kube


def test_a_model_of_the_previous_chart_serves_through_the_upgrade_to_this_one(untouched: Kube, tmp_path: Path) -> None:
    exact = make_exact_model("qwen2_moe", torch.float32, tmp_path)
    # by the image's own Job they would be this checkout's from the start
    old = "--set=crds.upgrade=false"
    with served_model(untouched, f"upgraded-{os.getpid()}", exact, tmp_path, old, chart=PREVIOUS) as served:
        assert installed(untouched) == {schema(each) for each in kept()}
        experts, routers = served.names("expert"), served.names("router")
        with served.load():
            served.upgrade("110m")
            served.namespace.roll_out("deployment/moe-operator", START_S)
            served.until_replaced("expert", experts)
        assert served.names("router") == routers
        assert installed(untouched) == {schema(each) for each in definitions()}


def installed(kube: Kube) -> set[str]:
    """Digests of the schemas that the cluster has."""
    return {schema(kube.in_namespace("default").get("crd", each["metadata"]["name"])) for each in definitions()}


def kept() -> list[Document]:
    """Definitions of the previous chart."""
    return [yaml.safe_load(path.read_text()) for path in sorted((PREVIOUS / "crds").iterdir())]


def schema(definition: Document) -> str:
    """The digest of its schema."""
    return str(definition["metadata"]["annotations"][SCHEMA_ANNOTATION])
