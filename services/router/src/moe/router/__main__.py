"""Runs a router: `python -m moe.router --package DIR --name NAME --listen ADDRESS --discovery file:FILE`."""

import sys
from collections.abc import Sequence

from moe.router.service import RouterProcess
from moe.router.settings import RouterSettings
from moe.runtime.program import run_program
from moe.runtime.server import Service

_PROGRAM = "moe.router"
_DESCRIPTION = "Serves a model package over gRPC: backbone, scheduler and gate here, experts in services of their own."


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until drained. Returns 0, 1 after a failure, 2 for bad settings or a bad package, 130 when interrupted."""
    return run_program(RouterSettings, _service, argv, prog=_PROGRAM, description=_DESCRIPTION)


def _service(settings: RouterSettings) -> Service:
    return RouterProcess(settings).service()


if __name__ == "__main__":
    sys.exit(main())
