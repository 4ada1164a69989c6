"""Objects of Kubernetes for a model: pure functions from wishes to manifests, which the executor applies."""

from moe.operator.manifests.access import access
from moe.operator.manifests.context import GroupContext, Manifest, ModelContext, Owner
from moe.operator.manifests.conversion import conversion
from moe.operator.manifests.inspection import inspection
from moe.operator.manifests.workloads import aggregator, expert_file, expert_group, router

__all__ = [
    "GroupContext",
    "Manifest",
    "ModelContext",
    "Owner",
    "access",
    "aggregator",
    "conversion",
    "expert_file",
    "expert_group",
    "inspection",
    "router",
]
