"""The table of a deployment's processes, for `moe status` and live above `moe up`."""

from collections.abc import Collection, Sequence

from moe.cli.figures import Row, Summary
from moe.cli.output import bytes_text, safe
from moe.cli.supervise.lifecycle import State
from moe.wire.names import told
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_STATE_STYLES = {
    State.READY.value: "green",
    State.STARTING.value: "yellow",
    State.WAITING.value: "yellow",
    State.UNREADY.value: "red",
    State.FAILED.value: "bold red",
}
_RIGHT = ("rows/s", "share", "queue", "wait", "busy", "restarts", "memory", "pid")
_COLUMNS = ("process", "experts", "state", "rows/s", "share", "", "queue", "wait", "busy", "restarts", "memory", "pid")
_NONE = "–"
_BAR = 10


def status_table(
    title: str, address: str, rows: Sequence[Row], summary: Summary, wires: Collection[str]
) -> RenderableType:
    """A headline and one line per process. wires: the implementations that carry the layer calls."""
    headline = Text.assemble(
        (title, "bold"),
        f"  {summary.tokens_per_s:.1f} tokens/s  {summary.running} running  {summary.waiting} waiting  "
        f"{bytes_text(summary.resident_bytes)} resident  {address}  {wires_text(wires)}",
        f"  kernel: {' and '.join(summary.kernels)}" if summary.kernels else "",
    )
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in _RIGHT else "left", no_wrap=True)
    largest = max((row.share or 0.0 for row in rows), default=0.0)
    for row in rows:
        table.add_row(*_cells(row, largest))
    return Group(headline, table, *_reasons(rows))


def wires_text(wires: Collection[str]) -> str:
    """Which wire runs, and what it costs where it is the slow one; several where the parts differ."""
    return "wire: " + " and ".join(told(wire) for wire in sorted(set(wires)) if wire)


def _cells(row: Row, largest_share: float) -> list[Text | str]:
    process = row.process
    bar = "█" * round(_BAR * row.share / largest_share) if row.share and largest_share else ""
    return [
        process.name,
        expert_ranges(process.experts) or _NONE,
        Text(process.state, style=_STATE_STYLES.get(process.state, "")),
        _NONE if row.rows_per_s is None else f"{row.rows_per_s:.0f}",
        _NONE if row.share is None else f"{100 * row.share:.1f} %",
        bar,
        _NONE if row.queue is None else str(row.queue),
        _NONE if row.wait_s is None else f"{1e3 * row.wait_s:.1f} ms",
        _NONE if row.busy is None else f"{100 * row.busy:.0f} %",
        str(process.restarts),
        _NONE if row.resident_bytes is None else bytes_text(row.resident_bytes),
        _NONE if process.pid is None else str(process.pid),
    ]


def _reasons(rows: Sequence[Row]) -> list[Text]:
    troubled = [row.process for row in rows if row.process.reason and row.process.state != State.READY.value]
    return [Text(f"{process.name}: {safe(process.reason)}", style="yellow") for process in troubled]


def expert_ranges(experts: Sequence[int]) -> str:
    """Ascending ids with neighbours joined: `0-3,7`."""
    ranges: list[list[int]] = []
    for expert in experts:
        if ranges and ranges[-1][1] == expert - 1:
            ranges[-1][1] = expert
        else:
            ranges.append([expert, expert])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
