"""Runs a router: `python -m moe.router --package DIR --name NAME --listen ADDRESS --directory FILE`."""

import sys
from collections.abc import Sequence

from moe.router.service import RouterProcess
from moe.router.settings import RouterSettings
from moe.runtime import logs
from moe.runtime.entry import run_main
from moe.runtime.process import set_threads
from moe.runtime.server import run
from moe.runtime.settings import load
from moe.runtime.telemetry import telemetry

_PROGRAM = "moe.router"
_DESCRIPTION = "Serves a model package over gRPC: backbone, scheduler and gate here, experts in services of their own."


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until drained. Returns 0, 1 after a failure, 2 for bad settings or a bad package, 130 when interrupted."""
    return run_main(lambda: _serve(sys.argv[1:] if argv is None else argv))


def _serve(argv: Sequence[str]) -> int:
    settings = load(RouterSettings, argv, prog=_PROGRAM, description=_DESCRIPTION)
    logs.set_up(settings.telemetry.log_level, settings.telemetry.log_format, name=settings.name)
    set_threads(settings.threads)
    service = RouterProcess(settings).service()
    with telemetry(settings.telemetry, service):
        return run(service, settings.server)


if __name__ == "__main__":
    sys.exit(main())
