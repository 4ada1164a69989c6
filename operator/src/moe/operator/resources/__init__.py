"""The custom resources MoEModel and MoEExpert: typed here once, and from the types their definitions and readers."""

from moe.operator.resources.definitions import definitions, expert_definition, model_definition
from moe.operator.resources.expert import ExpertSpec, ExpertStatus, MoEExpert
from moe.operator.resources.fields import Quantity, Rule, read, schema_of, write
from moe.operator.resources.model import (
    Aggregator,
    Experts,
    MissingExpert,
    ModelSpec,
    ModelStatus,
    MoEModel,
    PackageFacts,
    PackageSource,
    Placed,
    Router,
    Routing,
)
from moe.operator.resources.parts import Amounts, Condition, Resources, Toleration

__all__ = [
    "Aggregator",
    "Amounts",
    "Condition",
    "ExpertSpec",
    "ExpertStatus",
    "Experts",
    "MissingExpert",
    "MoEExpert",
    "MoEModel",
    "ModelSpec",
    "ModelStatus",
    "PackageFacts",
    "PackageSource",
    "Placed",
    "Quantity",
    "Resources",
    "Router",
    "Routing",
    "Rule",
    "Toleration",
    "definitions",
    "expert_definition",
    "model_definition",
    "read",
    "schema_of",
    "write",
]
