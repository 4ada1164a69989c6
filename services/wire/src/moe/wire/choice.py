"""Which implementation of the wire a process uses: native where it is built, else grpcio; or the one that was named."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from moe.runtime.errors import StartupError
from moe.wire.ends import AggregatorEnd, ExpertEnd, RouterEnd
from moe.wire.names import WIRES, told


@dataclass(frozen=True)
class Wire:
    """The ends of one implementation. own_combiner: they take a combiner's limits instead of a combiner.

    router: (name, *, combiner, loop, settings). expert: (limits, instance, settings). aggregator: (combiner, name,
    instance, settings), on the server's loop.
    """

    name: str
    own_combiner: bool
    router: Callable[..., RouterEnd]
    expert: Callable[..., ExpertEnd]
    aggregator: Callable[..., AggregatorEnd]

    @property
    def told(self) -> str:
        """The name for people, with what it costs."""
        return told(self.name)


def load(wanted: str = "auto") -> Wire:
    """The implementation of that name, or the best one here for `auto`.

    Raises StartupError when a named one is unknown or can't be loaded, with the remedy.
    """
    if wanted != "auto":
        return _loaded(wanted)
    try:
        return _loaded("native")
    except StartupError:
        return _loaded("grpcio")


def _loaded(name: str) -> Wire:
    if name not in WIRES:
        raise StartupError(f"wire: got {name!r}, want auto, {' or '.join(WIRES)}")
    try:
        ends = importlib.import_module(f"moe.wire.{name}")
    except ImportError as error:
        raise StartupError(
            f"wire {name}: {error}; build it with `make setup`, which needs a Rust toolchain (https://rustup.rs), "
            "or take --wire grpcio"
        ) from error
    return Wire(name, ends.OWN_COMBINER, ends.RouterClient, ends.ExpertServer, ends.AggregatorServer)
