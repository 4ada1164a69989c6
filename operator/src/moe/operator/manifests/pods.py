"""Pods as all components have them: hardened, probed, ended with grace, with the package mounted read-only.

The way out is what a client never notices: a pod that is deleted leaves the endpoints at once; its preStop hook waits
until routers have seen that; then the process gets SIGTERM, finishes what it accepted and exits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moe.operator.amounts import threads_of
from moe.operator.manifests.context import Manifest, ModelContext
from moe.operator.naming import (
    GPU_RESOURCE,
    GRPC_PORT_NAME,
    METRICS_PORT,
    METRICS_PORT_NAME,
    PACKAGE_PATH,
    Component,
    account_name,
    labels,
)
from moe.operator.planner import PARTS_ENVIRONMENT, thread_budget
from moe.operator.resources import Placed, Resources, write

LEAVE_S = 5
"""Seconds between leaving the endpoints and SIGTERM: several times what routers take to see it."""

DRAIN_S = 30
"""Longest that a process may take to finish what it has accepted."""

GRACE_S = LEAVE_S + DRAIN_S + 10
"""Until the kubelet kills: leave, drain, and time to close."""

LOADING_S = 1800
"""Longest that loading may take before the container is started again; a large expert comes over a slow network."""

STARTED = "moe.started"
"""The health service that says SERVING once loading is over, and that the serving loop answers as long as it turns."""

USER = 65532
"""Of all processes; the images' own user, without a name or rights on any node."""

_PROBE_PERIOD_S = 2


@dataclass(frozen=True)
class Program:
    """What a pod's container runs. module: of Python; arguments: its flags; port: of gRPC.

    mounts: paths within the package -> where the container sees them below the package's folder.
    """

    component: Component
    module: str
    arguments: tuple[str, ...]
    port: int
    resources: Resources
    mounts: tuple[str, ...]
    token: bool = False
    gpus: int = 0


def pod_template(
    model: ModelContext,
    program: Program,
    placed: Placed,
    *,
    group: str = "",
    annotations: Mapping[str, str] | None = None,
    spread: Sequence[Manifest] = (),
) -> Manifest:
    """The pod template of a Deployment."""
    spec: Manifest = {
        "serviceAccountName": account_name(model.name, program.component),
        "automountServiceAccountToken": program.token,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(),
        "containers": [_container(model, program)],
        "volumes": volumes(model) if program.mounts else volumes(model)[1:],
        **placement(placed),
    }
    if spread:
        spec["topologySpreadConstraints"] = list(spread)
    if model.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in model.spec.image_pull_secrets]
    return {
        "metadata": {"labels": labels(model.name, program.component, group), "annotations": dict(annotations or {})},
        "spec": spec,
    }


def placement(placed: Placed) -> Manifest:
    """Where pods go."""
    found: Manifest = {}
    if placed.node_selector:
        found["nodeSelector"] = dict(placed.node_selector)
    if placed.tolerations:
        found["tolerations"] = write(placed.tolerations)
    if placed.priority_class_name:
        found["priorityClassName"] = placed.priority_class_name
    return found


def pod_security() -> Manifest:
    """What Pod Security `restricted` asks of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """What Pod Security `restricted` asks of a container, and a root file system that can't be written."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def volumes(model: ModelContext) -> list[Manifest]:
    """The package's claim, never mounted writable, and a folder for temporary files."""
    claim = {"claimName": model.spec.package.claim, "readOnly": True}
    return [
        {"name": "package", "persistentVolumeClaim": claim},
        {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
    ]


def package_mount(model: ModelContext, path: str) -> Manifest:
    """A file or folder of the package (empty: all of it) at its place below the package's path, read-only."""
    inside = "/".join(part for part in (model.spec.package.sub_path, path) if part)
    at = f"{PACKAGE_PATH}/{path}" if path else PACKAGE_PATH
    mount: Manifest = {"name": "package", "mountPath": at, "readOnly": True}
    return {**mount, "subPath": inside} if inside else mount


def tmp_mount() -> Manifest:
    """The folder for temporary files."""
    return {"name": "tmp", "mountPath": "/tmp"}


def flags(**values: object) -> tuple[str, ...]:
    """Flags of a part: `layer_timeout_s=2.5` is `--layer-timeout-s=2.5`; True the flag alone; None, False nothing."""
    words = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words.append(f"{flag}={value}")
    return tuple(words)


def serving_flags(port: int) -> tuple[str, ...]:
    """Flags that all parts share in a pod."""
    return flags(
        name="$(POD_NAME)",
        listen=f"0.0.0.0:{port}",
        drain_timeout_s=DRAIN_S,
        metrics_host="0.0.0.0",
        metrics_port=METRICS_PORT,
        log_format="json",
    )


def _container(model: ModelContext, program: Program) -> Manifest:
    return {
        "name": program.component,
        "image": model.image,
        "imagePullPolicy": model.spec.image_pull_policy,
        "command": ["python", "-m", program.module],
        "args": [*serving_flags(program.port), *program.arguments],
        "env": environment(threads_of(program.resources)),
        "ports": [
            {"name": GRPC_PORT_NAME, "containerPort": program.port},
            {"name": METRICS_PORT_NAME, "containerPort": METRICS_PORT},
        ],
        "resources": _resources(program),
        "securityContext": container_security(),
        "volumeMounts": [*(package_mount(model, path) for path in program.mounts), tmp_mount()],
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVE_S}}},
        **_probes(program.port),
    }


def environment(threads: int) -> list[Manifest]:
    """Of every process: its own name, and what the planner says of threads and libraries."""
    budget = thread_budget(threads, 1, expert=threads)
    fixed = {**PARTS_ENVIRONMENT, **budget.environment, "HOME": "/tmp", "PYTHONUNBUFFERED": "1"}
    own: Manifest = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [own, *({"name": name, "value": value} for name, value in sorted(fixed.items()))]


def _resources(program: Program) -> Manifest:
    found: dict[str, Any] = write(program.resources)
    if program.gpus:
        # An extended resource's request has to equal its limit, so the limit alone is given.
        found = {**found, "limits": {**found.get("limits", {}), GPU_RESOURCE: str(program.gpus)}}
    return found


def _probes(port: int) -> Manifest:
    """startup: loading is over. readiness: health of the service, which a real forward has earned. liveness: the
    serving loop answers; patient, since a process that is only busy must not be killed for it."""
    started = {"grpc": {"port": port, "service": STARTED}}
    return {
        "startupProbe": {
            **started,
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": LOADING_S,
        },
        "readinessProbe": {
            "grpc": {"port": port},
            "periodSeconds": _PROBE_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": 2,
        },
        "livenessProbe": {**started, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
    }
