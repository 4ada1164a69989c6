"""What happens to the sequences of one step while it runs: who is lost, who is degraded, whose rows still count.

A row belongs to one sequence of the step, by its place among the step's works. A lost sequence's rows are not sent to
experts any more, so that one missing part costs the step one wait and not one a layer.
"""

from collections.abc import Sequence

import numpy as np
from moe.router.call_result import LayerResult
from moe.router.domain import Degradation
from moe.runtime.errors import MoeError
from numpy.typing import NDArray

RENORMALISED = "renormalised"


class StepLedger:
    """One step's. owners: int64 [rows], for each row of the packed batch the place of its sequence."""

    def __init__(self, owners: NDArray[np.int64], sequences: int) -> None:
        self.owners = owners
        self.errors: dict[int, MoeError] = {}
        self.degradations: dict[int, Degradation] = {}
        self._alive = np.ones(sequences, dtype=np.bool_)

    def keep(self, owners: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """bool [n]: rows whose sequence is not lost; None while none is."""
        return self._alive[owners] if self.errors else None

    def lose(self, owners: NDArray[np.int64], error: MoeError) -> None:
        """The sequences of these rows end with this error, unless they have one."""
        for owner in np.unique(owners).tolist():
            self.errors.setdefault(owner, error)
            self._alive[owner] = False

    def lose_all(self, error: MoeError) -> None:
        """Every sequence ends with this error, unless it has one."""
        self.lose(np.arange(len(self._alive)), error)

    def apply(self, owners: NDArray[np.int64], result: LayerResult) -> None:
        """Takes note of a layer call's troubles. owners: of the rows of its hidden states."""
        for trouble in result.troubles:
            touched = owners[trouble.rows.numpy()]
            if trouble.error is not None:
                self.lose(touched, trouble.error)
                continue
            for owner in np.unique(touched).tolist():
                before = self.degradations.get(owner)
                calls = 1 + (before.layer_calls if before else 0)
                self.degradations[owner] = Degradation(RENORMALISED, calls, trouble.reason)


def owners_of(counts: Sequence[int]) -> NDArray[np.int64]:
    """int64 [rows]: 0 for the first count's rows, 1 for the second's, and so on."""
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)
