"""The `moe` command: gathers the subcommands, and turns everything that goes wrong into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or package, 130 interrupted.
"""

import sys
from collections.abc import Sequence

import click
from moe.cli.commands.bench import bench
from moe.cli.commands.chat import chat
from moe.cli.commands.convert import convert
from moe.cli.commands.demo import demo
from moe.cli.commands.generate import generate
from moe.cli.commands.models import models
from moe.cli.commands.quantize import quantize
from moe.cli.commands.score import score
from moe.cli.commands.status import status
from moe.cli.commands.tokenize import tokenize
from moe.cli.commands.up import up
from moe.cli.commands.version import version
from moe.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, CliError
from moe.cli.output import forsake_stdout, print_error
from moe.models.errors import ModelsError, PackageError, UnsupportedModelError
from moe.operator.planner import PlanError
from moe.runtime.errors import MoeError, StartupError

_COMMANDS = (up, generate, chat, status, models, convert, quantize, tokenize, score, demo, bench, version)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nA model answers in three steps:\n  moe convert demo\n  moe up demo\n  moe generate --chat 'Hello!'",
)
def moe() -> None:
    """Serve a Mixture-of-Experts model with every expert a service of its own."""


for _command in _COMMANDS:
    moe.add_command(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    try:
        result = moe.main(args=None if argv is None else list(argv), prog_name="moe", standalone_mode=False)
        return result if isinstance(result, int) else EXIT_OK
    except (click.exceptions.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        forsake_stdout()
        return EXIT_FAILURE
    except Exception as error:
        return _report(error)


def _report(error: Exception) -> int:
    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return error.exit_code
        case click.ClickException():
            context = getattr(error, "ctx", None)
            print_error(error.format_message() + (f"\n{_hint(context)}" if context else ""))
            return error.exit_code
        case CliError():
            print_error(str(error))
            return error.exit_code
        case PackageError() | UnsupportedModelError() | PlanError() | StartupError():
            print_error(str(error))
            return EXIT_USAGE
        case ModelsError() | MoeError():
            print_error(str(error))
            return EXIT_FAILURE
        case OSError():
            print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            return EXIT_FAILURE
        case _:
            raise error


def _hint(context: click.Context) -> str:
    return f"see: {context.command_path} --help"


if __name__ == "__main__":
    sys.exit(main())
