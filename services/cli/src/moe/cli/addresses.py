"""Finds the router that a command talks to: by address, by the name of a deployment, or the only one that is up."""

from collections.abc import Mapping, Sequence

from moe.cli.errors import CliError, UsageError
from moe.cli.supervise import runtime_dir, state_file
from moe.cli.supervise.state_file import DeploymentRecord

ADDRESS_VARIABLE = "MOE_ADDRESS"
"""Environment variable with the router's address, where no option names one."""


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
