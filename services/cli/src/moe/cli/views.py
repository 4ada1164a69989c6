"""What `moe up` shows while it runs: lines in a pipe, JSON for programs, a live table in a terminal."""

import asyncio
import time
from typing import Protocol

from moe.cli import figures, output
from moe.cli.status_table import status_table
from moe.cli.supervise.notices import Notice
from moe.cli.supervise.publisher import process_records
from moe.cli.supervise.supervisor import Supervisor
from rich.console import Console, RenderableType
from rich.live import Live

_REFRESH_S = 0.5


class View(Protocol):
    """Shows a deployment."""

    def notify(self, notice: Notice) -> None:
        """Something happened."""

    async def follow(self, supervisor: Supervisor) -> None:
        """Shows the deployment until cancelled."""


class Lines:
    """A line per notice, with the time of day."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def notify(self, notice: Notice) -> None:
        """Prints it."""
        name = f"{notice.process} " if notice.process else ""
        text = "\n".join(output.safe(line) for line in notice.text.split("\n"))
        self._console.print(f"{time.strftime('%H:%M:%S')} {name}{text}", markup=False)

    async def follow(self, supervisor: Supervisor) -> None:
        """Has nothing to show between notices."""


class JsonLines:
    """A JSON object per notice, with the time in seconds since the epoch."""

    def notify(self, notice: Notice) -> None:
        """Prints it."""
        output.print_json({"time": round(time.time(), 3), **notice.as_json()})

    async def follow(self, supervisor: Supervisor) -> None:
        """Has nothing to show between notices."""


class LiveTable:
    """The table of all processes, refreshed in place, with the notices scrolling by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines = Lines(console)

    def notify(self, notice: Notice) -> None:
        """Prints it above the table."""
        self._lines.notify(notice)

    async def follow(self, supervisor: Supervisor) -> None:
        """Refreshes the table until cancelled."""
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(table_of(supervisor), refresh=True)
                await asyncio.sleep(_REFRESH_S)


def table_of(supervisor: Supervisor) -> RenderableType:
    """The table of a supervised deployment as it stands."""
    names = supervisor.fleet.specs
    ends = {name: pair for name in names if (pair := supervisor.samples.ends(name)) is not None}
    rows = figures.rows(process_records(supervisor.fleet), ends)
    deployment, wires = supervisor.deployment, supervisor.samples.wires.values()
    return status_table(deployment.name, deployment.address, rows, figures.summary(ends), wires)
