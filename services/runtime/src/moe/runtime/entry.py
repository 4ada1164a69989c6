"""How a service's `main` ends: one place that turns errors into messages and exit codes.

def main(argv: Sequence[str] | None = None) -> int:
    return run_main(lambda: _serve(sys.argv[1:] if argv is None else argv))

def _serve(argv: Sequence[str]) -> int:
    settings = load(ExpertSettings, argv, prog="moe.expert", description="...")
    logs.set_up(settings.telemetry.log_level, settings.telemetry.log_format, name=settings.name)
    service = Service(name=settings.name, ...)
    with telemetry(settings.telemetry, service):
        return run(service, settings.server)
"""

import logging
import sys
from collections.abc import Callable

from moe.runtime.errors import StartupError

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_CONFIGURATION = 2
EXIT_INTERRUPTED = 130


def run_main(body: Callable[[], int]) -> int:
    """The exit code of a program. A StartupError is printed as `error: ...`; anything unexpected is logged."""
    try:
        return body()
    except StartupError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return EXIT_CONFIGURATION
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception:
        logging.getLogger("moe").exception("failed unexpectedly")
        return EXIT_FAILURE
