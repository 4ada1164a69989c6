"""A table of back ends of one operator, chosen by name.

Every operator of moe.kernels has an obvious `reference` and faster back ends beside it. Which one runs is asked for by
name and can be shown; `auto` is a declared choice of the operator's, never a fall-back after a failure. A back end that
can't run here (no compiler at set-up, no such instruction) says why; asked for by name it is an error.
"""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

AUTO = "auto"

Function = TypeVar("Function", bound=Callable[..., object])
Reason = Callable[[], str | None]


class UnknownBackendError(ValueError):
    """A back end was asked for that the operator does not have."""


class UnavailableBackendError(UnknownBackendError):
    """A back end was asked for that can't run on this machine; the message says why."""


class Registry(Generic[Function]):
    """The back ends of one operator.

    operator: its name, for messages. preferred: what `auto` means where nothing is measured; one name, or several of
    which the first that is available counts. unavailable: name -> why it can't run here, None when it can; called when
    it matters. batch_invariant: those that promise a row the same bits whatever else is in the call.
    """

    def __init__(
        self,
        operator: str,
        preferred: str | tuple[str, ...],
        backends: dict[str, Function],
        *,
        unavailable: Mapping[str, Reason] | None = None,
        batch_invariant: frozenset[str] = frozenset(),
    ) -> None:
        self.preferred = (preferred,) if isinstance(preferred, str) else preferred
        self._unavailable = dict(unavailable or {})
        for name in (*self.preferred, *self._unavailable, *batch_invariant):
            if name not in backends:
                raise UnknownBackendError(f"{operator}: back end {name!r} is not among {sorted(backends)}")
        self.operator = operator
        self.batch_invariant = batch_invariant
        self._backends = dict(backends)

    def names(self) -> tuple[str, ...]:
        """The names that `get` takes, `auto` first."""
        return (AUTO, *sorted(self._backends))

    def available(self) -> tuple[str, ...]:
        """The back ends that can run here, ascending."""
        return tuple(name for name in sorted(self._backends) if self.why_not(name) is None)

    def why_not(self, name: str) -> str | None:
        """Why a back end can't run here; None when it can."""
        reason = self._unavailable.get(name)
        return None if reason is None else reason()

    def resolve(self, name: str) -> str:
        """The back end that runs when `name` is asked for.

        Raises UnknownBackendError, and UnavailableBackendError with the reason.
        """
        resolved = self._automatic() if name == AUTO else name
        if resolved not in self._backends:
            raise UnknownBackendError(f"{self.operator}: no back end {name!r}; choose one of {', '.join(self.names())}")
        why = self.why_not(resolved)
        if why is not None:
            raise UnavailableBackendError(f"{self.operator}: back end {resolved!r} can't run here: {why}")
        return resolved

    def get(self, name: str) -> Function:
        """The function of a back end. Raises as `resolve`."""
        return self._backends[self.resolve(name)]

    def _automatic(self) -> str:
        return next((name for name in self.preferred if self.why_not(name) is None), self.preferred[-1])
