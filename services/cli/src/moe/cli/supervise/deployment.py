"""Everything that one `moe up` runs, fixed before the first process starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moe.cli.supervise.lifecycle import Rules
from moe.cli.supervise.spec import ProcessSpec


@dataclass(frozen=True)
class Deployment:
    """What is to run. package: folder of the model, for the record. address: the router's endpoint.

    modules: what the fork server imports. environ: of all processes. folder: private to the deployment; logs: folder
    of the processes' outputs; directory: the file that tells router and aggregators where the experts are.
    """

    name: str
    model: str
    package: str
    address: str
    specs: tuple[ProcessSpec, ...]
    modules: tuple[str, ...]
    environ: Mapping[str, str]
    rules: Rules
    ready_timeout_s: float
    folder: Path
    logs: Path
    directory: Path


@dataclass(frozen=True)
class Failure:
    """Why a deployment did not come up. log: the last lines of the process to blame."""

    reason: str
    log: tuple[str, ...] = ()
    bad_configuration: bool = False
