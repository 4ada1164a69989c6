"""The CustomResourceDefinitions, made from the typed resources: what `python -m moe.operator.resources` writes."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from moe.operator.naming import (
    EXPERT_KIND,
    EXPERT_PLURAL,
    GROUP,
    MODEL_KIND,
    MODEL_PLURAL,
    SCHEMA_ANNOTATION,
    VERSION,
    VERSION_ANNOTATION,
)
from moe.operator.resources.expert import MoEExpert
from moe.operator.resources.fields import schema_of
from moe.operator.resources.model import MoEModel

RELEASE = "0.1.0"
"""Version of moe that these definitions are of; the chart's and the package's, as a test has it."""


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`. priority 1: only with -o wide."""

    name: str
    path: str
    text: str
    type: str = "string"
    priority: int = 0

    def entry(self) -> dict[str, Any]:
        """As the definition has it."""
        wide = {"priority": self.priority} if self.priority else {}
        return {"name": self.name, "type": self.type, "description": self.text, "jsonPath": self.path, **wide}


def _condition(kind: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")]'


_AGE = Column("Age", ".metadata.creationTimestamp", "Since when it is there.", "date")

_MODEL_COLUMNS = (
    Column("Experts", ".status.experts", "Expert groups with a ready replica, of all."),
    Column("Routers", ".status.routers", "Ready routers, of those wished."),
    Column("Available", _condition("Available") + ".status", "Whether requests are answered."),
    Column("Reason", _condition("Available") + ".reason", "Why they are or are not."),
    Column("Package", ".spec.package.claim", "Claim with the model package.", priority=1),
    Column("Endpoint", ".status.endpoint", "Where clients in the cluster dial.", priority=1),
    _AGE,
)

_EXPERT_COLUMNS = (
    Column("Model", ".spec.model", "The MoEModel it belongs to."),
    Column("Experts", ".status.experts", "Ids of its experts."),
    Column("Ready", ".status.ready", "Ready pods, of those wished."),
    Column("Version", ".status.version", "Version of its weights."),
    Column("Load", ".status.load", "How busy its ready pods are, on average."),
    Column("Reason", _condition("Available") + ".reason", "Why it is or is not available.", priority=1),
    _AGE,
)


def model_definition() -> dict[str, Any]:
    """The definition of MoEModel."""
    return _definition(MODEL_KIND, MODEL_PLURAL, ["moem"], MoEModel, _MODEL_COLUMNS, {"status": {}})


def expert_definition() -> dict[str, Any]:
    """The definition of MoEExpert."""
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return _definition(EXPERT_KIND, EXPERT_PLURAL, ["moee"], MoEExpert, _EXPERT_COLUMNS, {"status": {}, "scale": scale})


def definitions() -> tuple[dict[str, Any], ...]:
    """All definitions of this version."""
    return model_definition(), expert_definition()


def _definition(
    kind: str, plural: str, short: list[str], source: type, columns: tuple[Column, ...], subresources: dict[str, Any]
) -> dict[str, Any]:
    schema = schema_of(source)
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
        "additionalPrinterColumns": [each.entry() for each in columns],
    }
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": short,
        "categories": ["moe"],
    }
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "annotations": {SCHEMA_ANNOTATION: digest, VERSION_ANNOTATION: RELEASE},
        },
        "spec": spec,
    }
