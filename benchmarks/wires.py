"""The implementations of the wire that can be measured."""

from moe.runtime.errors import StartupError
from moe.wire.choice import Wire, load
from moe.wire.names import WIRES

__all__ = ["WIRES", "AbsentError", "wire"]


class AbsentError(Exception):
    """Something to be measured can't run here; the message says why, for the table."""


def wire(name: str) -> Wire:
    """An implementation. Raises AbsentError when it isn't built or can't be loaded."""
    try:
        return load(name)
    except StartupError as error:
        raise AbsentError(str(error)) from error
