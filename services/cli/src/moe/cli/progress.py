"""How far long work on files is: a bar in a terminal, a line now and then in a pipe. On standard error, both."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from moe.cli import output
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

Report = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all and what is at hand, as moe.models.progress.Progress."""

_LINE_EVERY_S = 5.0


@contextlib.contextmanager
def reported(title: str, *, quiet: bool = False) -> Iterator[Report]:
    """Gives what the work has to call. quiet: shows nothing."""
    if quiet:
        yield lambda done, total, label: None
    elif sys.stderr.isatty():
        with _bar() as progress:
            task = progress.add_task(title, total=None, label="")
            yield lambda done, total, label: progress.update(task, completed=done, total=total, label=label)
    else:
        yield _Lines(title)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[label]}"), console=output.console(stderr=True), transient=True)


class _Lines:
    """The first report and the last as lines, and one every few seconds between."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._next = 0.0
        self._finished = False

    def __call__(self, done: int, total: int, label: str) -> None:
        now = time.monotonic()
        complete = done >= total
        if self._finished or (now < self._next and not complete):
            return
        self._next, self._finished = now + _LINE_EVERY_S, complete
        share = f"{100 * done / total:.0f} %" if total else ""
        print(f"{self._title}: {share} of {output.bytes_text(total)}, {label}", file=sys.stderr, flush=True)
