"""How a service's `main` ends: one place that turns errors into messages and exit codes."""

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
