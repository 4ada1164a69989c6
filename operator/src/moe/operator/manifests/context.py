"""What manifests are made from: one model, its wishes, and what the operator found out about it."""

from dataclasses import dataclass
from typing import Any

from moe.operator.naming import API_VERSION, EXPERT_KIND, MODEL_KIND, Component, labels
from moe.operator.planner import GroupPlan
from moe.operator.resources import ModelSpec, PackageFacts

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Owner:
    """An object by whose deletion what it owns goes too."""

    kind: str
    name: str
    uid: str

    def reference(self) -> Manifest:
        """As metadata.ownerReferences has it."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


@dataclass(frozen=True)
class ModelContext:
    """A model that is to be served. image: of all its pods, the operator's own unless the model names another."""

    name: str
    namespace: str
    uid: str
    spec: ModelSpec
    image: str
    package: PackageFacts | None = None

    @property
    def owner(self) -> Owner:
        """The MoEModel as an owner."""
        return Owner(MODEL_KIND, self.name, self.uid)


@dataclass(frozen=True)
class GroupContext:
    """An expert group that has its MoEExpert. uid: the MoEExpert's; replicas: as whoever scales it wishes."""

    plan: GroupPlan
    uid: str
    replicas: int

    @property
    def owner(self) -> Owner:
        """The MoEExpert as an owner."""
        return Owner(EXPERT_KIND, self.plan.name, self.uid)


def metadata(
    model: ModelContext,
    name: str,
    component: Component,
    owner: Owner,
    *,
    group: str = "",
    annotations: dict[str, str] | None = None,
) -> Manifest:
    """Of an object made for a model. The digest is added by the executor."""
    found: Manifest = {
        "name": name,
        "namespace": model.namespace,
        "labels": labels(model.name, component, group),
        "ownerReferences": [owner.reference()],
    }
    if annotations:
        found["annotations"] = annotations
    return found
