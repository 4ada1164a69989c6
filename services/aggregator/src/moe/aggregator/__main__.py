"""Runs an aggregator: `python -m moe.aggregator --name NAME --listen ADDRESS --discovery file:FILE`."""

import sys
from collections.abc import Sequence

from moe.aggregator.service import AggregatorProcess
from moe.aggregator.settings import AggregatorSettings
from moe.runtime.program import run_program
from moe.runtime.server import Service

_PROGRAM = "moe.aggregator"
_DESCRIPTION = "Adds the experts' weighted partials of every layer call, in a fixed order, and answers the routers."


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until drained. Returns 0, 1 after a failure, 2 for bad settings, 130 when interrupted."""
    return run_program(AggregatorSettings, _service, argv, prog=_PROGRAM, description=_DESCRIPTION)


def _service(settings: AggregatorSettings) -> Service:
    return AggregatorProcess(settings).service()


if __name__ == "__main__":
    sys.exit(main())
