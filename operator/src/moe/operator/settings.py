"""Settings of the operator: flags over environment, the way a chart sets them."""

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """An operator process.

    image: of models' pods that name none. namespace: the one it serves; empty for all, which needs rights in all.
    lease_namespace: where its Lease lies. lease_name: operators with one name take turns. identity: unique among them.
    lease_s: seconds after which a silent holder has lost it. port: of health and metrics; 0 takes a free one.
    """

    image: str
    namespace: str = ""
    lease_namespace: str = "default"
    lease_name: str = "moe-operator"
    identity: str = ""
    lease_s: float = 15.0
    port: int = 8080
    log_level: str = "info"
    log_format: str = "json"


def read_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """From flags, each of which MOE_OPERATOR_NAME in the environment gives a default. Exits with 2 for bad ones."""
    parser = argparse.ArgumentParser(
        prog="moe.operator",
        description="Serves the MoEModels of a cluster: makes their Deployments and keeps them.",
        allow_abbrev=False,
    )

    def flag(name: str, text: str, default: str, **more: object) -> None:
        variable = "MOE_OPERATOR_" + name.replace("-", "_").upper()
        value = environ.get(variable, default)
        parser.add_argument(f"--{name}", default=value, help=f"{text} [{variable}]", **more)  # type: ignore[arg-type]

    flag("image", "image of models' pods that name none", "")
    flag("namespace", "the one namespace to serve; all without it", "")
    flag("lease-namespace", "where the Lease lies, by which of several operators one acts", "default")
    flag("lease-name", "name of the Lease", "moe-operator")
    flag("identity", "name of this operator among those that share the Lease", "")
    flag("lease-s", "seconds after which a silent holder has lost the Lease", "15", type=float)
    flag("port", "of health (/healthz, /readyz) and metrics (/metrics)", "8080", type=int)
    flag("log-level", "least level to log", "info", choices=("debug", "info", "warning", "error"))
    flag("log-format", "text or json", "json", choices=("text", "json"))
    found = vars(parser.parse_args(argv))
    if not found["image"]:
        parser.error("--image is missing: name the image that models' pods run, such as --image registry/moe:0.1.0")
    if not 2.0 <= found["lease_s"] <= 600.0:
        parser.error(f"--lease-s is {found['lease_s']:g}; want 2 to 600 seconds")
    found["identity"] = found["identity"] or f"{socket.gethostname()}-{os.getpid()}"
    return Settings(**found)
