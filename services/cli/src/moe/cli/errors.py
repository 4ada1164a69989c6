"""What the command line says when it can't do something. Printed as `error: ...` on stderr; never a trace.

CliError            exit code 1: it was tried and failed
└── UsageError    exit code 2: the command, a value or a package is wrong; trying again as is can't help
"""

from typing import ClassVar

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class CliError(Exception):
    """It was tried and failed. The message says what, and what to do."""

    exit_code: ClassVar[int] = EXIT_FAILURE


class UsageError(CliError):
    """The command, a value or a package is wrong."""

    exit_code = EXIT_USAGE
