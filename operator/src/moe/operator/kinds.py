"""The kinds of objects that the operator reads or writes, and how objects are named among all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moe.operator.naming import EXPERT_KIND, EXPERT_PLURAL, GROUP, MODEL_KIND, MODEL_PLURAL, VERSION


@dataclass(frozen=True)
class Kind:
    """A kind. wave: objects of a lower wave are written before those of a higher one, which need them.

    labelled: whether the operator reads only those that carry a model's label.
    """

    group: str
    version: str
    name: str
    plural: str
    wave: int = 0
    labelled: bool = True

    @property
    def api_version(self) -> str:
        """As objects have it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Of an object, or of all in a namespace."""
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = (root, self.version, "namespaces", namespace, self.plural, name, subresource)
        return "/".join(part for part in parts if part)


MODEL = Kind(GROUP, VERSION, MODEL_KIND, MODEL_PLURAL, labelled=False)
EXPERT = Kind(GROUP, VERSION, EXPERT_KIND, EXPERT_PLURAL, wave=1, labelled=False)
ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", wave=1)
SERVICE = Kind("", "v1", "Service", "services", wave=2)
DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", wave=2)
JOB = Kind("batch", "v1", "Job", "jobs", wave=3)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments", wave=3)
POD = Kind("", "v1", "Pod", "pods")
CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", labelled=False)
EVENT = Kind("", "v1", "Event", "events")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")

MANAGED = (ACCOUNT, ROLE, BINDING, EXPERT, SERVICE, DISRUPTION_BUDGET, JOB, DEPLOYMENT)
"""Kinds that are made for a model, in the order of their waves."""

WATCHED = (MODEL, *MANAGED, POD, CLAIM)

_BY_NAME = {kind.name: kind for kind in (MODEL, *MANAGED, POD, CLAIM)}


@dataclass(frozen=True, order=True)
class Ref:
    """An object among those of one namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def kind_named(name: str) -> Kind:
    """Raises KeyError for a kind that the operator doesn't know."""
    return _BY_NAME[name]


def ref_of(body: Mapping[str, Any]) -> Ref:
    """Of an object."""
    return Ref(body["kind"], body["metadata"]["name"])
