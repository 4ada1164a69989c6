"""A table of back ends of one operator, chosen by name.

Every operator of moe.kernels has an obvious `reference` and faster back ends beside it. Which one runs is asked for by
name and can be shown; `auto` is a declared choice of the operator's, never a fall-back after a failure.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

AUTO = "auto"

Function = TypeVar("Function", bound=Callable[..., object])


class UnknownBackendError(ValueError):
    """A back end was asked for that the operator does not have."""


class Registry(Generic[Function]):
    """The back ends of one operator. operator: its name, for messages. preferred: what `auto` means."""

    def __init__(self, operator: str, preferred: str, backends: dict[str, Function]) -> None:
        if preferred not in backends:
            raise UnknownBackendError(f"{operator}: preferred back end {preferred!r} is not among {sorted(backends)}")
        self.operator = operator
        self.preferred = preferred
        self._backends = dict(backends)

    def names(self) -> tuple[str, ...]:
        """The names that `get` takes, `auto` first."""
        return (AUTO, *sorted(self._backends))

    def resolve(self, name: str) -> str:
        """The back end that runs when `name` is asked for. Raises UnknownBackendError."""
        resolved = self.preferred if name == AUTO else name
        if resolved not in self._backends:
            raise UnknownBackendError(f"{self.operator}: no back end {name!r}; choose one of {', '.join(self.names())}")
        return resolved

    def get(self, name: str) -> Function:
        """The function of a back end. Raises UnknownBackendError."""
        return self._backends[self.resolve(name)]
