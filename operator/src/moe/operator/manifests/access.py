"""ServiceAccounts of a model's components, and the one right that routers and aggregators have: to watch who serves."""

from moe.operator.manifests.context import Manifest, ModelContext, metadata
from moe.operator.naming import EXPERT_PLURAL, GROUP, MODEL_PLURAL, Component, account_name, discovery_name


def access(model: ModelContext) -> tuple[Manifest, ...]:
    """Accounts, role and binding. Experts and the inspection have an account without a token and without rights."""
    watchers: tuple[Component, ...] = ("router",)
    if model.spec.aggregator.placement == "own":
        watchers = ("router", "aggregator")
    accounts = [_account(model, component) for component in (*watchers, "expert", "package")]
    return (*accounts, _role(model), _binding(model, watchers))


def _account(model: ModelContext, component: Component) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(model, account_name(model.name, component), component, model.owner),
        "automountServiceAccountToken": False,
    }


def _role(model: ModelContext) -> Manifest:
    watch = ["get", "list", "watch"]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(model, discovery_name(model.name), "router", model.owner),
        "rules": [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
            {"apiGroups": [GROUP], "resources": [MODEL_PLURAL, EXPERT_PLURAL], "verbs": watch},
        ],
    }


def _binding(model: ModelContext, watchers: tuple[Component, ...]) -> Manifest:
    name = discovery_name(model.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(model, name, "router", model.owner),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [
            {"kind": "ServiceAccount", "name": account_name(model.name, each), "namespace": model.namespace}
            for each in watchers
        ],
    }
