"""How far long work on files is: a bar in a terminal, a line now and then in a pipe. On standard error, both."""

import contextlib
import sys
import time
from collections.abc import Iterator

from moe.cli import output
from moe.models.progress import Progress, silent
from rich import progress as rich_progress

_LINE_EVERY_S = 5.0


@contextlib.contextmanager
def reported(title: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Gives what the work has to call. quiet: shows nothing."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with _bar() as bar:
            yield _Bar(bar, title)
    else:
        yield _Lines(title)


def _bar() -> rich_progress.Progress:
    return rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[label]}"),
        console=output.console(stderr=True),
        transient=True,
    )


class _Bar:
    """One bar in a terminal."""

    def __init__(self, bar: rich_progress.Progress, title: str) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=None, label="")

    def __call__(self, done: int, total: int, label: str) -> None:
        self._bar.update(self._task, completed=done, total=total or None, label=label)


class _Lines:
    """The first report and the last as lines, and one every few seconds between."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._next = 0.0
        self._finished = False

    def __call__(self, done: int, total: int, label: str) -> None:
        now = time.monotonic()
        complete = 0 < total <= done
        if self._finished or (now < self._next and not complete):
            return
        self._next, self._finished = now + _LINE_EVERY_S, complete
        share = f"{100 * done / total:.0f} % of {output.bytes_text(total)}, " if total else ""
        print(f"{self._title}: {share}{label}", file=sys.stderr, flush=True)
