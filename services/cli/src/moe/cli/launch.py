"""From what a user asks of `moe up` to a deployment that can be run: plan, private folder, flags of all parts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from moe.cli import addresses
from moe.cli.errors import CliError, UsageError
from moe.cli.supervise import runtime_dir
from moe.cli.supervise.contact import dialable
from moe.cli.supervise.deployment import Deployment
from moe.cli.supervise.layout import DRAIN_TIMEOUT_S, Options, Places, lay_out
from moe.cli.supervise.lifecycle import Rules
from moe.cli.supervise.ports import FreePorts
from moe.cli.supervise.spec import ProcessSpec, Role
from moe.cli.supervise.state_file import DeploymentRecord
from moe.operator.planner import PARTS_ENVIRONMENT, Backoff, ModelFacts, Plan, Wishes, plan
from moe.runtime import addresses as listen_addresses

_KILL_AFTER_DRAIN_S = 5.0


@dataclass(frozen=True)
class Launch:
    """What a user asks for. name: of the deployment, None for the plan's. logs: folder for logs that are to be kept."""

    package: Path
    model: ModelFacts
    wishes: Wishes
    options: Options = field(default_factory=Options)
    name: str | None = None
    tcp: bool = False
    listen: str | None = None
    ready_timeout_s: float = 300.0
    logs: Path | None = None


@contextmanager
def prepared(launch: Launch, environ: Mapping[str, str]) -> Iterator[Deployment]:
    """The deployment, with its name and folder held as long as the context lasts.

    Raises PlanError, UsageError for values that don't fit, CliError when the name or the address is taken.
    """
    made = plan(launch.model, launch.wishes)
    name = launch.name or made.name
    base = runtime_dir.base_folder(environ)
    runtime_dir.clean_stale(base)
    others = addresses.running(environ)
    if launch.listen is not None:
        _check_listen(launch.listen, others)
    try:
        with runtime_dir.owned_folder(base, name) as folder:
            yield _deployment(launch, made, name=name, folder=folder, environ=environ)
    except runtime_dir.NameTakenError as error:
        raise CliError(_taken(name, others)) from error


def _deployment(launch: Launch, made: Plan, *, name: str, folder: Path, environ: Mapping[str, str]) -> Deployment:
    places = Places(launch.package, folder, folder / "directory.json", launch.tcp, launch.listen)
    specs = lay_out(made, places, launch.options, FreePorts())
    logs = launch.logs or folder
    logs.mkdir(parents=True, exist_ok=True)
    return Deployment(
        name=name,
        model=made.model,
        package=str(launch.package),
        address=next(spec.endpoint for spec in specs if spec.role is Role.ROUTER),
        specs=specs,
        modules=_shared_modules(specs),
        environ={**environ, **PARTS_ENVIRONMENT, **made.threads.environment},
        rules=_rules(launch.ready_timeout_s),
        ready_timeout_s=launch.ready_timeout_s,
        folder=folder,
        logs=logs,
        directory=places.directory,
    )


def _shared_modules(specs: Sequence[ProcessSpec]) -> tuple[str, ...]:
    """What the fork server imports for its children. Not the router: every expert would carry its libraries.

    transformers adds 110 MB to whatever is forked after it; the router imports it itself while the experts start.
    """
    return tuple(dict.fromkeys(spec.module for spec in specs if spec.role is not Role.ROUTER))


def _rules(ready_timeout_s: float) -> Rules:
    backoff = Backoff()
    return Rules(
        restart_delay=backoff.delay_s,
        looping_after=backoff.looping_after,
        stable_s=backoff.steady_s,
        start_timeout_s=ready_timeout_s,
        drain_timeout_s=DRAIN_TIMEOUT_S + _KILL_AFTER_DRAIN_S,
    )


def _check_listen(listen: str, others: list[DeploymentRecord]) -> None:
    """Raises StartupError, UsageError or CliError unless it is an address that no other deployment has."""
    target = listen_addresses.parse(listen).target
    if target.endswith(":0") and not target.startswith("unix:"):
        raise UsageError(f"--listen {listen}: choose a port, so that clients know it")
    for other in others:
        if dialable(other.address) == dialable(target):
            raise CliError(f"{other.name} (pid {other.pid}) is up at {target}; end it or choose another --listen")


def _taken(name: str, others: list[DeploymentRecord]) -> str:
    for other in others:
        if other.name == name:
            return f"{name} is up already (pid {other.pid}, router at {other.address}); end it or choose another --name"
    return f"another `moe up` is starting {name}; wait for it or choose another --name"
