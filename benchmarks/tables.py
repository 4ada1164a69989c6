"""Tables as text that reads well in a terminal and is a Markdown table at the same time."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right. Raises ValueError for a row of another width."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row has {len(row)} cells and the header {len(header)}: {list(row)}")
    widths = [max(3, *(len(line[column]) for line in (header, *rows))) for column in range(len(header))]
    rule = [("-" * width) if column == 0 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(_line(cells, widths) for cells in (header, rule, *rows))


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits and no exponent; `absent` for None."""
    if value is None:
        return "absent"
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, digits - whole) if whole else digits}f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"
