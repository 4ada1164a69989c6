"""From a model's objects on a cluster to what tables show of it and to the routers that can be talked to. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moe.cli.cluster.api import Body
from moe.cli.cluster.place import Site
from moe.cli.errors import CliError
from moe.cli.supervise.lifecycle import State
from moe.cli.supervise.state_file import ProcessRecord
from moe.discovery import names

_ORDER = (names.EXPERT_COMPONENT, names.AGGREGATOR_COMPONENT, names.ROUTER_COMPONENT)


@dataclass(frozen=True)
class ClusterDeployment:
    """A model on a cluster, with what a deployment of this machine has. address: where clients in the cluster dial.

    note: why it does not answer; empty when it does.
    """

    name: str
    model: str
    package: str
    address: str
    up: bool
    processes: tuple[ProcessRecord, ...]
    note: str = ""
    pid: None = None


def deployment(site: Site, model: Body, experts: Iterable[Body], pods: Sequence[Body]) -> ClusterDeployment:
    """Every pod as a process, by component and name, and every group that has none. Endpoints: POD:PORT."""
    held = {each["metadata"]["name"]: tuple(sorted(each["spec"]["experts"])) for each in experts}
    listed = [process_of(pod, held) for pod in pods if _label(pod, names.COMPONENT_LABEL) in _ORDER]
    empty = [_absent(group, held[group]) for group in held.keys() - {process.group for process in listed}]
    status, package = model.get("status", {}), model["spec"]["package"]
    return ClusterDeployment(
        name=f"{site.namespace}/{model['metadata']['name']}",
        model=status.get("package", {}).get("name", ""),
        package="/".join(part for part in (package["claim"], package.get("subPath", "")) if part),
        address=status.get("endpoint", ""),
        up=available(model) == "",
        processes=tuple(sorted((*listed, *empty), key=lambda each: (_ORDER.index(each.role), each.group, each.name))),
        note=available(model),
    )


def available(model: Body) -> str:
    """Why a model does not answer, as its condition has it; empty when it does."""
    for each in model.get("status", {}).get("conditions", ()):
        if each["type"] == "Available":
            return "" if each["status"] == "True" else f"{each['reason']}: {each['message']}"
    return "no operator has looked at it yet; is one running?"


def process_of(pod: Body, held: dict[str, tuple[int, ...]]) -> ProcessRecord:
    """A pod as a row of the table. held: expert ids of each group."""
    state, reason = _state(pod)
    group = _label(pod, names.GROUP_LABEL)
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return ProcessRecord(
        name=pod["metadata"]["name"],
        role=_label(pod, names.COMPONENT_LABEL),
        state=state.value,
        pid=None,
        restarts=sum(each["restartCount"] for each in statuses),
        endpoint=f"{pod.get('status', {}).get('podIP', '')}:{grpc_port(pod)}",
        group=group,
        experts=held.get(group, ()),
        reason=reason,
    )


def grpc_port(pod: Body) -> int:
    """Of a pod of moe."""
    ports = [port for each in pod["spec"]["containers"] for port in each.get("ports", ())]
    return int(next(port["containerPort"] for port in ports if port.get("name") == names.GRPC_PORT_NAME))


def is_ready(pod: Body) -> bool:
    """Whether Kubernetes sends it traffic."""
    return _state(pod)[0] is State.READY


def ready_routers(site: Site, model: Body, routers: Iterable[Body]) -> list[Body]:
    """Those that can be talked to, at least one. Raises CliError with what is known of why there is none."""
    ready = [pod for pod in routers if is_ready(pod)]
    if not ready:
        name = model["metadata"]["name"]
        why = available(model) or "its routers have just gone"
        raise CliError(
            f"{site}: model {name} has no ready router: {why}; see `{site.kubectl} describe moemodel {name}`"
        )
    return ready


def _absent(group: str, experts: tuple[int, ...]) -> ProcessRecord:
    return ProcessRecord(
        name=group,
        role=names.EXPERT_COMPONENT,
        state=State.STOPPED.value,
        pid=None,
        restarts=0,
        endpoint="",
        group=group,
        experts=experts,
        reason="the group has no pod",
    )


def _state(pod: Body) -> tuple[State, str]:
    """What a pod is doing in the words of `moe up`, and why it is not ready."""
    status = pod.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    if "deletionTimestamp" in pod["metadata"]:
        return State.STOPPING, "it is being deleted"
    if status.get("phase") in ("Failed", "Succeeded"):
        return State.FAILED, f"{status.get('reason', status['phase'])}: {status.get('message', '')}".rstrip(": ")
    if conditions.get("Ready", {}).get("status") == "True":
        return State.READY, ""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return State.WAITING, f"{scheduled.get('reason', '')}: {scheduled.get('message', '')}".strip(": ")
    for each in status.get("containerStatuses", ()):
        if waiting := each.get("state", {}).get("waiting"):
            return State.WAITING, f"{waiting.get('reason', '')}: {waiting.get('message', '')}".strip(": ")
        if each.get("started"):
            return State.UNREADY, str(conditions.get("Ready", {}).get("message", ""))
    return State.STARTING, ""


def _label(pod: Body, key: str) -> str:
    return str(pod["metadata"].get("labels", {}).get(key, ""))
