"""The implementations of the wire that can be measured, by the name of their package under moe.wire."""

import importlib
from types import ModuleType

WIRES = ("grpcio", "native")
_ACTORS = ("RouterClient", "ExpertServer", "AggregatorServer", "WireSettings")


class AbsentError(Exception):
    """Something to be measured can't run here; the message says why, for the table."""


def wire(name: str) -> ModuleType:
    """The package with the actors of an implementation. Raises AbsentError when it isn't built or can't be loaded."""
    try:
        module = importlib.import_module(f"moe.wire.{name}")
    except ImportError as error:
        raise AbsentError(f"wire {name}: {error}; build it with make setup, which needs a Rust toolchain") from error
    if lacking := [actor for actor in _ACTORS if not hasattr(module, actor)]:
        raise AbsentError(f"wire {name}: moe.wire.{name} has no {', '.join(lacking)}; build it anew with make setup")
    return module
