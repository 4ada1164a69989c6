"""Objects that tests put into a namespace: pods that Pod Security "restricted" lets in, and what belongs to them."""

from collections.abc import Sequence

from .api import Document

_POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def deployment(
    name: str,
    image: str,
    command: Sequence[str],
    *,
    replicas: int = 1,
    port: int = 0,
    labels: dict[str, str] | None = None,
) -> Document:
    """port: with a readiness probe on it."""
    selected = {"app": name}
    metadata = {"labels": {**selected, **(labels or {})}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selected},
            "template": {"metadata": metadata, "spec": pod_spec(image, command, port=port)},
        },
    }


def pod_spec(image: str, command: Sequence[str], *, port: int = 0, claim: str = "") -> Document:
    """One container, an empty /tmp, and the claim at /data when one is named."""
    container: Document = {
        "name": "main",
        "image": image,
        "command": list(command),
        "securityContext": _CONTAINER_SECURITY,
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes: list[Document] = [{"name": "tmp", "emptyDir": {}}]
    if port:
        container["ports"] = [{"containerPort": port}]
        container["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 1}
    if claim:
        container["volumeMounts"].append({"name": "data", "mountPath": "/data"})
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": claim}})
    return {
        "securityContext": dict(_POD_SECURITY),
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": 1,
    }


def pod(name: str, image: str, command: Sequence[str], *, claim: str = "", restart: str = "Always") -> Document:
    """One pod by itself."""
    spec = {**pod_spec(image, command, claim=claim), "restartPolicy": restart}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def service(name: str, port: int) -> Document:
    """In front of the Deployment of the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": port}]},
    }


def claim(name: str, size: str = "10Mi") -> Document:
    """Of the cluster's default storage class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    }
