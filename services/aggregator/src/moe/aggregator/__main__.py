"""Runs an aggregator: `python -m moe.aggregator --name NAME --listen ADDRESS --directory FILE`."""

import sys
from collections.abc import Sequence

from moe.aggregator.service import AggregatorProcess
from moe.aggregator.settings import AggregatorSettings
from moe.runtime import logs
from moe.runtime.entry import run_main
from moe.runtime.process import set_threads
from moe.runtime.server import run
from moe.runtime.settings import load
from moe.runtime.telemetry import telemetry

_PROGRAM = "moe.aggregator"
_DESCRIPTION = "Adds the experts' weighted partials of every layer call, in a fixed order, and answers the routers."


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until drained. Returns 0, 1 after a failure, 2 for bad settings, 130 when interrupted."""
    return run_main(lambda: _serve(sys.argv[1:] if argv is None else argv))


def _serve(argv: Sequence[str]) -> int:
    settings = load(AggregatorSettings, argv, prog=_PROGRAM, description=_DESCRIPTION)
    logs.set_up(settings.telemetry.log_level, settings.telemetry.log_format, name=settings.name)
    set_threads(settings.threads)
    service = AggregatorProcess(settings).service()
    with telemetry(settings.telemetry, service):
        return run(service, settings.server)


if __name__ == "__main__":
    sys.exit(main())
