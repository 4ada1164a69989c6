"""What the commands print: text for people, JSON for programs, colours only in a terminal."""

import json
import os
import re
import sys
from collections.abc import Mapping

from rich.console import Console

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Console(Console):
    """Raises BrokenPipeError when its reader is gone, as print does, where rich would exit the process."""

    def on_broken_pipe(self) -> None:
        """Leaves the decision to the caller."""
        raise BrokenPipeError


def forsake_stdout() -> None:
    """Sends what is still buffered for standard output nowhere: its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(*, stderr: bool = False) -> Console:
    """A console on one of the standard outputs. In a pipe: no colours, and lines as long as they are."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return _Console(file=stream, highlight=False, width=width, soft_wrap=not stream.isatty())


def print_json(value: object) -> None:
    """One JSON document on one line, flushed, so that a reader of the pipe sees it now."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_error(message: str) -> None:
    """`error: ...` on standard error, in red in a terminal."""
    text = f"error: {message}"
    print(f"\x1b[31m{text}\x1b[0m" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def safe(text: str) -> str:
    """Text that can't steer a terminal: control characters, but newline and tab, are shown as U+FFFD."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def write_text(text: str) -> None:
    """Text of a model to standard output as it comes; made safe when that is a terminal."""
    sys.stdout.write(safe(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def bytes_text(count: int) -> str:
    """A size for people: `98.4 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def facts_text(facts: Mapping[str, object]) -> str:
    """Facts as aligned lines, `name  value`."""
    width = max(map(len, facts), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())
