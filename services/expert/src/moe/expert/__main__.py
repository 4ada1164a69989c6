"""Runs one expert group: `python -m moe.expert --package DIR --experts 0,3 --name NAME --group GROUP --listen ...`."""

import sys
from collections.abc import Sequence

from moe.expert.service import ExpertProcess
from moe.expert.settings import ExpertSettings
from moe.runtime.program import run_program
from moe.runtime.server import Service

_PROGRAM = "moe.expert"
_DESCRIPTION = "Serves one expert group of a model package over gRPC."


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until drained. Returns 0, 1 after a failure, 2 for bad settings or a bad package, 130 when interrupted."""
    return run_program(ExpertSettings, _service, argv, prog=_PROGRAM, description=_DESCRIPTION)


def _service(settings: ExpertSettings) -> Service:
    return ExpertProcess(settings).service()


if __name__ == "__main__":
    sys.exit(main())
