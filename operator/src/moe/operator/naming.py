"""Every name that leaves the operator: API group, label and annotation keys, object names, ports, field managers.

Others meet these names and not this module: routers read labels and custom resources, people type names, the chart's
rights list kinds. So each stands here once and is changed with them. Names of groups come from the pure planner.
"""

from typing import Literal

GROUP = "moe.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
MODEL_KIND, MODEL_PLURAL = "MoEModel", "moemodels"
EXPERT_KIND, EXPERT_PLURAL = "MoEExpert", "moeexperts"

MODEL_LABEL = f"{GROUP}/model"
"""Name of the MoEModel that an object belongs to; on everything that the operator makes. EndpointSlices inherit it."""

COMPONENT_LABEL = f"{GROUP}/component"
"""What an object is for: router, expert, aggregator, package, conversion."""

GROUP_LABEL = f"{GROUP}/group"
"""Name of the expert group, which is its MoEExpert's; on everything of one expert group."""

EXPERTS_ANNOTATION = f"{GROUP}/experts"
"""Ids of a group's experts, `0,3`; on its Service and pods, for people and for routers without rights on MoEExperts."""

DIGEST_ANNOTATION = f"{GROUP}/applied"
"""Digest of what the operator applied last, by which it knows that nothing is to be written."""

SCHEMA_ANNOTATION = f"{GROUP}/schema"
"""Digest of a CustomResourceDefinition's schema, by which an operator sees definitions older than itself."""

CONVERSION_ANNOTATION = f"{GROUP}/conversion"
"""On an inspection's pod: uid of the conversion it comes after, so that what was found before doesn't count."""

VERSION_ANNOTATION = f"{GROUP}/version"
"""Version of moe that a CustomResourceDefinition is of; definitions are never taken back to an older one."""

Component = Literal["router", "expert", "aggregator", "package", "conversion"]

FIELD_MANAGER = "moe-operator"
REPLICAS_MANAGER = "moe-operator-replicas"
"""Owns `spec.replicas` alone, and only until somebody else scales."""

ROUTER_PORT, EXPERT_PORT, AGGREGATOR_PORT = 50051, 50052, 50053
METRICS_PORT = 9090
EXPERT_BUSY_METRIC = "moe_expert_busy_seconds_total"
"""On an expert's metrics page: seconds that it has computed since its start, as moe.runtime has it."""

GRPC_PORT_NAME, METRICS_PORT_NAME = "grpc", "metrics"

PACKAGE_PATH = "/package"
"""Where a pod sees its model package, or of it the files that it needs."""

GPU_RESOURCE = "nvidia.com/gpu"

LONGEST_MODEL_NAME = 40
"""Characters; the planner's bound, so that names of groups and pods stay labels."""


def router_name(model: str) -> str:
    """Of a model's router Deployment and its disruption budget."""
    return f"{model}-router"


def aggregator_name(model: str) -> str:
    """Of a model's aggregator Deployment, headless Service and disruption budget."""
    return f"{model}-aggregator"


def service_name(model: str) -> str:
    """Of the Service that clients dial: the model's own name."""
    return model


def account_name(model: str, component: Component) -> str:
    """Of a component's ServiceAccount."""
    return f"{model}-{component}"


def discovery_name(model: str) -> str:
    """Of the Role and RoleBinding by which routers and aggregators watch who serves what."""
    return f"{model}-discovery"


def conversion_name(model: str) -> str:
    """Of the Job that makes the package of its source."""
    return f"{model}-conversion"


def inspection_name(model: str) -> str:
    """Of the Job that reads what the package holds."""
    return f"{model}-package"


def labels(model: str, component: Component, group: str = "") -> dict[str, str]:
    """Labels of everything made for a model, the recommended ones of Kubernetes included."""
    return {
        "app.kubernetes.io/name": "moe",
        "app.kubernetes.io/instance": model,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        **selector(model, component, group),
    }


def selector(model: str, component: Component, group: str = "") -> dict[str, str]:
    """The labels that tell a component's pods from all others; never changed, as Deployments can't change theirs."""
    found = {MODEL_LABEL: model, COMPONENT_LABEL: component}
    return {**found, GROUP_LABEL: group} if group else found
