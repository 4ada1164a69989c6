"""Names by which routers and aggregators find what the operator made, as the operator has them.

The operator knows no service and no service knows the operator: what both agree on stands in a module of each,
and a test holds them against each other (moe.operator.naming has the meanings).
"""

GROUP = "moe.dev"
VERSION = "v1alpha1"
MODELS = "moemodels"
EXPERTS = "moeexperts"

MODEL_LABEL = "moe.dev/model"
COMPONENT_LABEL = "moe.dev/component"
GROUP_LABEL = "moe.dev/group"

EXPERT_COMPONENT = "expert"
AGGREGATOR_COMPONENT = "aggregator"
ROUTER_COMPONENT = "router"

GRPC_PORT_NAME = "grpc"

SLICES_GROUP = "discovery.k8s.io"
SLICES_VERSION = "v1"
SLICES = "endpointslices"
"""Kubernetes' own: pods behind a Service. Services' labels are copied to them."""
