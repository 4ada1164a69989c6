"""Puts a benchmark's output into a page, between two comments that name it: one command brings the page up to date."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def replaced(page: str, name: str, text: str) -> str:
    """The page with the text between `<!-- begin NAME -->` and `<!-- end NAME -->`. Raises ValueError without them."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no {begin} with {end} after it; add both where the table belongs")
    return f"{before}{begin}\n{text.strip()}\n{end}{after}"


def require_places(names: Iterable[str], into: Path | None) -> None:
    """Before anything is measured: raises ValueError unless the page, if there is one, has a place for every table."""
    if into is not None:
        page = into.read_text(encoding="utf-8")
        for name in names:
            replaced(page, name, "")


def publish(name: str, text: str, into: Path | None) -> None:
    """Prints a benchmark's text, and puts it into a page where one is given."""
    print(text)
    if into is not None:
        into.write_text(replaced(into.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def fenced(lines: Sequence[str]) -> str:
    """Lines that a page shows as they are."""
    return "\n".join(["```", *lines, "```"])
