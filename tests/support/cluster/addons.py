"""What every cluster is given besides: the DNS Service, a default storage class, and the rights of the two programs."""

import json

from .api import Document
from .network import DNS_SERVICE_ADDRESS, NODE_ADDRESS

STORAGE_CLASS = "moe-local"
PROVISIONER = "moe.dev/local-folder"

_PORTS = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]


def documents() -> str:
    """A List for `kubectl apply`."""
    items = [*_dns(), _storage_class(), *_rights("dns", _DNS_RULES), *_rights("provisioner", _PROVISIONER_RULES)]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _dns() -> list[Document]:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": DNS_SERVICE_ADDRESS, "ports": _PORTS},
    }
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-node",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "ports": _PORTS,
        "endpoints": [{"addresses": [NODE_ADDRESS], "conditions": {"ready": True}}],
    }
    return [service, slice_]


def _storage_class() -> Document:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


_READ = ["get", "list", "watch"]
_DNS_RULES: list[Document] = [
    {"apiGroups": [""], "resources": ["services", "namespaces", "pods", "endpoints"], "verbs": _READ},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": _READ},
]
_PROVISIONER_RULES: list[Document] = [
    {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["list", "create", "delete"]},
]


def _rights(program: str, rules: list[Document]) -> list[Document]:
    name = f"moe:{program}"
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    }
    return [role, binding]
