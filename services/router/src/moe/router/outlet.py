"""Where an answer goes: from the engine's thread to whoever asked, with a bound on what waits in between."""

from typing import Protocol

from moe.router.domain import Ending, Piece, Scored
from moe.runtime.errors import MoeError

Item = Piece | Ending | Scored


class Outlet(Protocol):
    """One request's. The engine puts pieces and one ending (or a `Scored`), or fails it; never blocks."""

    @property
    def full(self) -> bool:
        """Whether so much waits to be read that generation should pause."""

    def put(self, item: Item) -> None:
        """Hands on a part of the answer."""

    def fail(self, error: MoeError) -> None:
        """Ends the answer with an error."""
