"""Finds the router that a command talks to: by address, a deployment's name, the only one up, or on a cluster."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from moe.cli.cluster.link import linked
from moe.cli.cluster.place import NOWHERE, Place
from moe.cli.errors import CliError, UsageError
from moe.cli.router_client import RouterClient
from moe.cli.supervise import runtime_dir, state_file
from moe.cli.supervise.state_file import DeploymentRecord

ADDRESS_VARIABLE = "MOE_ADDRESS"
"""Environment variable with the router's address, where no option names one."""


@dataclass(frozen=True)
class Wanted:
    """The router that was asked for. Raises UsageError when it was asked for in two ways."""

    address: str | None = None
    name: str | None = None
    place: Place = NOWHERE

    def __post_init__(self) -> None:
        here = [f"--{word}" for word in ("address", "name") if getattr(self, word)]
        if here and self.place:
            raise UsageError(
                f"{here[0]} is of this machine, --context, --namespace and --model are of a cluster; choose one"
            )


@contextlib.contextmanager
def connected(environ: Mapping[str, str], wanted: Wanted) -> Iterator[RouterClient]:
    """A connection to the router for as long as the block runs. Raises CliError, UsageError."""
    if not wanted.place:
        with RouterClient(find_router(environ, wanted.address, wanted.name)) as router:
            yield router
        return
    with linked(environ, wanted.place) as link, RouterClient(link.router(), link.trouble) as router:
        yield router


def find_router(environ: Mapping[str, str], address: str | None, name: str | None) -> str:
    """The gRPC target of the router to talk to. Raises CliError when there is none, UsageError when it is unclear."""
    if address or name:
        return address or named(running(environ), name or "").address
    return environ.get(ADDRESS_VARIABLE) or only(running(environ)).address


def running(environ: Mapping[str, str]) -> list[DeploymentRecord]:
    """All deployments of this user on this machine, by name."""
    return state_file.running(runtime_dir.base_folder(environ))


def named(deployments: Sequence[DeploymentRecord], name: str) -> DeploymentRecord:
    """The deployment of that name. Raises CliError."""
    for deployment in deployments:
        if deployment.name == name:
            return deployment
    names = ", ".join(deployment.name for deployment in deployments)
    raise CliError(f"{name!r} is not up; " + (f"up: {names}" if names else f"bring it up with: moe up {name}"))


def only(deployments: Sequence[DeploymentRecord]) -> DeploymentRecord:
    """The deployment, when there is exactly one. Raises CliError or UsageError."""
    if not deployments:
        raise CliError("nothing is up on this machine; bring a model up with `moe up PACKAGE`, or name a --address")
    if len(deployments) > 1:
        names = ", ".join(deployment.name for deployment in deployments)
        raise UsageError(f"several deployments are up ({names}); choose one with --name")
    return deployments[0]
