"""A model's objects in a cluster as the operator makes them, of pods that are ready when a test says so."""

from collections.abc import Iterable
from typing import Any

from moe.operator import naming
from moe.operator.resources import definitions
from support.cluster import workloads
from support.cluster.client import Kube, Namespace

Body = dict[str, Any]

READY_FILE = "/tmp/ready"


def install_definitions(kube: Kube) -> None:
    """The custom resources' definitions, of this checkout."""
    kube.in_namespace("default").apply(*definitions())
    names = [f"crd/{each['metadata']['name']}" for each in definitions()]
    kube.kubectl("wait", "--for=condition=Established", *names, "--timeout=30s", timeout_s=40)


def model(name: str, routing: Body | None = None) -> Body:
    spec = {"package": {"claim": "none"}, **({"routing": routing} if routing else {})}
    return {"apiVersion": naming.API_VERSION, "kind": naming.MODEL_KIND, "metadata": {"name": name}, "spec": spec}


def expert(model_name: str, group: str, ids: Iterable[int]) -> Body:
    return {
        "apiVersion": naming.API_VERSION,
        "kind": naming.EXPERT_KIND,
        "metadata": {"name": group, "labels": naming.labels(model_name, "expert", group)},
        "spec": {"model": model_name, "experts": list(ids)},
    }


def group_pods(image: str, model_name: str, group: str, replicas: int = 1) -> tuple[Body, Body]:
    """A Deployment whose pods become ready when READY_FILE is there, and its headless Service."""
    labels = naming.labels(model_name, "expert", group)
    body = workloads.deployment(group, image, ["sleep", "infinity"], replicas=replicas, labels=labels)
    (container,) = body["spec"]["template"]["spec"]["containers"]
    container["ports"] = [{"name": naming.GRPC_PORT_NAME, "containerPort": naming.EXPERT_PORT}]
    container["readinessProbe"] = {"exec": {"command": ["test", "-e", READY_FILE]}, "periodSeconds": 1}
    # sleep as the first process ignores SIGTERM: the pod stays, leaving, until its grace is over
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    service: Body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": group, "labels": labels},
        "spec": {
            "clusterIP": "None",
            "selector": naming.selector(model_name, "expert", group),
            "ports": [{"name": naming.GRPC_PORT_NAME, "port": naming.EXPERT_PORT}],
        },
    }
    return body, service


def pods_of(namespace: Namespace, group: str) -> list[str]:
    """Names of a group's pods that are not leaving, as soon as they run."""
    found = namespace.list("pods", f"{naming.GROUP_LABEL}={group}")
    return [
        each["metadata"]["name"]
        for each in found
        if "deletionTimestamp" not in each["metadata"] and each["status"]["phase"] == "Running"
    ]
