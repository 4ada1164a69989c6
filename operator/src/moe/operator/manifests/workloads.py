"""Deployments, Services and disruption budgets of routers, aggregators and expert groups."""

from moe.operator.amounts import threads_of
from moe.operator.manifests.context import GroupContext, Manifest, ModelContext, Owner, metadata
from moe.operator.manifests.pods import Program, flags, pod_template
from moe.operator.naming import (
    AGGREGATOR_PORT,
    EXPERT_PORT,
    EXPERTS_ANNOTATION,
    GRPC_PORT_NAME,
    METRICS_PORT,
    METRICS_PORT_NAME,
    PACKAGE_PATH,
    ROUTER_PORT,
    Component,
    aggregator_name,
    router_name,
    selector,
    service_name,
)
from moe.operator.resources import Resources

_TOPOLOGY = {"nodes": "kubernetes.io/hostname", "zones": "topology.kubernetes.io/zone"}
_PACKAGE_FILES = ("manifest.json", "probes.json")
"""What of a package every expert reads beside its own weights."""

Workload = tuple[Manifest, ...]


def router(model: ModelContext) -> Workload:
    """The routers: Deployment, the Service that clients dial, disruption budget.

    Of spec.routing only `deterministic` is a flag, as all parts have to agree on it; the rest each router reads from
    the MoEModel itself, so that a change acts on new requests and nothing is started again.
    """
    wished = model.spec.router
    program = Program(
        component="router",
        module="moe.router",
        arguments=flags(
            package=PACKAGE_PATH,
            discovery=_discovery(model),
            aggregator="embedded" if model.spec.aggregator.placement == "embedded" else "directory",
            threads=threads_of(wished.resources),
            max_running=wished.max_running,
            max_context=wished.max_context,
            kv_tokens=wished.kv_tokens,
            deterministic=model.spec.routing.deterministic,
        ),
        port=ROUTER_PORT,
        resources=wished.resources,
        mounts=("",),
        token=True,
    )
    name = router_name(model.name)
    return (
        _deployment(model, name, program, model.owner, pod_template(model, program, wished)),
        _service(model, service_name(model.name), program, model.owner),
        _disruption_budget(model, name, program, model.owner),
    )


def aggregator(model: ModelContext) -> Workload:
    """The aggregators of placement `own`; nothing of an embedded one."""
    wished = model.spec.aggregator
    if wished.placement == "embedded":
        return ()
    program = Program(
        component="aggregator",
        module="moe.aggregator",
        arguments=flags(
            discovery=_discovery(model),
            threads=threads_of(wished.resources),
            deterministic=model.spec.routing.deterministic,
        ),
        port=AGGREGATOR_PORT,
        resources=wished.resources,
        mounts=(),
        token=True,
    )
    name = aggregator_name(model.name)
    return (
        _deployment(model, name, program, model.owner, pod_template(model, program, wished)),
        _service(model, name, program, model.owner, headless=True),
        _disruption_budget(model, name, program, model.owner),
    )


def expert_group(model: ModelContext, group: GroupContext, resources: Resources | None = None) -> Workload:
    """One expert group: Deployment, headless Service, disruption budget. resources: instead of the model's."""
    wished, planned = model.spec.experts, group.plan
    ids = ",".join(map(str, planned.experts))
    program = Program(
        component="expert",
        module="moe.expert",
        arguments=flags(
            package=PACKAGE_PATH,
            experts=ids,
            group=planned.name,
            threads=threads_of(resources or wished.resources),
            deterministic=model.spec.routing.deterministic,
        ),
        port=EXPERT_PORT,
        resources=resources or wished.resources,
        mounts=(*_PACKAGE_FILES, *map(expert_file, planned.experts)),
        gpus=wished.gpus,
    )
    known = {EXPERTS_ANNOTATION: ids}
    template = pod_template(
        model,
        program,
        wished,
        group=planned.name,
        annotations=known,
        spread=_spread(model, planned.name, wished.spread),
    )
    deployment = _deployment(model, planned.name, program, group.owner, template, group=planned.name)
    deployment["spec"]["replicas"] = group.replicas
    return (
        deployment,
        _service(model, planned.name, program, group.owner, group=planned.name, headless=True, annotations=known),
        _disruption_budget(model, planned.name, program, group.owner, group=planned.name),
    )


def expert_file(expert: int) -> str:
    """Path within a package of one expert's weights, as packages have it."""
    return f"experts/expert-{expert:05d}.safetensors"


def _discovery(model: ModelContext) -> str:
    return f"kubernetes:{model.namespace}/{model.name}"


def _spread(model: ModelContext, group: str, over: str) -> list[Manifest]:
    """Replicas of a group apart where possible; a preference, as one node has to do as well."""
    if over not in _TOPOLOGY:
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": _TOPOLOGY[over],
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector(model.name, "expert", group)},
        }
    ]


def _deployment(
    model: ModelContext, name: str, program: Program, owner: Owner, template: Manifest, *, group: str = ""
) -> Manifest:
    """Without replicas, which are somebody's own. A new pod is ready before an old one goes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(model, name, program.component, owner, group=group),
        "spec": {
            "selector": {"matchLabels": selector(model.name, program.component, group)},
            "revisionHistoryLimit": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template,
        },
    }


def _service(
    model: ModelContext,
    name: str,
    program: Program,
    owner: Owner,
    *,
    group: str = "",
    headless: bool = False,
    annotations: dict[str, str] | None = None,
) -> Manifest:
    """Headless where peers pick a replica themselves."""
    spec: Manifest = {
        "selector": selector(model.name, program.component, group),
        "ports": [
            _port(GRPC_PORT_NAME, program.port, "kubernetes.io/h2c"),
            _port(METRICS_PORT_NAME, METRICS_PORT, "http"),
        ],
    }
    if headless:
        spec["clusterIP"] = "None"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(model, name, program.component, owner, group=group, annotations=annotations),
        "spec": spec,
    }


def _port(name: str, number: int, protocol: str) -> Manifest:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP", "appProtocol": protocol}


def _disruption_budget(model: ModelContext, name: str, program: Program, owner: Owner, *, group: str = "") -> Manifest:
    """One pod at a time may be evicted. Not `minAvailable: 1`, by which a single replica would block a node's drain."""
    component: Component = program.component
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(model, name, component, owner, group=group),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(model.name, component, group)}},
    }
