"""A service as a program: settings from file, environment and flags, then logs, threads, telemetry and the server.

What all three services do the same way between their command line and their exit code.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from moe.runtime import logs
from moe.runtime.entry import run_main
from moe.runtime.process import set_threads
from moe.runtime.server import ServerSettings, Service, run
from moe.runtime.settings import load
from moe.runtime.telemetry import TelemetrySettings, telemetry


class ProgramSettings(Protocol):
    """What every service's settings have. threads: that torch computes with in this process."""

    @property
    def server(self) -> ServerSettings:
        """Address, limits, drain."""

    @property
    def telemetry(self) -> TelemetrySettings:
        """Logs, metrics, traces."""

    @property
    def name(self) -> str:
        """Of the process, in the plan."""

    @property
    def threads(self) -> int:
        """To compute with."""


Settings = TypeVar("Settings", bound=ProgramSettings)


def run_program(
    kind: type[Settings],
    service_of: Callable[[Settings], Service],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str,
) -> int:
    """Serves until drained. argv: None for the command line's. service_of: may raise StartupError.

    Returns 0, 1 after a failure, 2 for bad settings or what they name, 130 when interrupted.
    """

    def serve() -> int:
        settings = load(kind, sys.argv[1:] if argv is None else argv, prog=prog, description=description)
        logs.set_up(settings.telemetry.log_level, settings.telemetry.log_format, name=settings.name)
        set_threads(settings.threads)
        service = service_of(settings)
        with telemetry(settings.telemetry, service):
            return run(service, settings.server)

    return run_main(serve)
