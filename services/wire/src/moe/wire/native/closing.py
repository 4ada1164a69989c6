"""Ends what native code still runs before the interpreter does.

A thread of the wire that asked for the interpreter's lock while that is being taken down would take the process along.
"""

import atexit
import weakref
from typing import Protocol


class Closable(Protocol):
    """Something with threads of its own."""

    def close(self) -> None:
        """Ends them. Doing it twice is no harm."""


_open: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_at_exit(part: Closable) -> None:
    """Has it closed at the interpreter's end, unless it is gone by then."""
    _open.add(part)


@atexit.register
def _close_all() -> None:
    for part in list(_open):
        part.close()
