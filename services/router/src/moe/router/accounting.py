"""Counts how often each expert was chosen: for each sequence of a step, and since the start.

A layer only leaves its arrays here; counting happens once a step, for all layers together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class _Choice:
    index: NDArray[np.int64]
    owners: NDArray[np.int64]
    experts: int


class SlotCounter:
    """Counts slots (row, layer, rank) by expert. Dropped slots are not counted."""

    def __init__(self, experts: int) -> None:
        """experts: the largest number in a layer."""
        self._experts = experts
        self._choices: list[_Choice] = []
        self.total: NDArray[np.int64] = np.zeros(experts, dtype=np.int64)

    def note(self, index: NDArray[np.int64], owners: NDArray[np.int64], experts: int) -> None:
        """One layer's choice. index [n, k]; owners [n]: the sequence of each row; experts: of this layer."""
        self._choices.append(_Choice(index, owners, experts))

    def drop(self) -> None:
        """Forgets what a step that failed has left."""
        self._choices.clear()

    def finish(self, sequences: int) -> NDArray[np.int64]:
        """int64 [sequences, experts]: the step's counts, which are added to `total`; begins a new step."""
        width = self._experts + 1
        places = [
            (choice.owners[:, None] * width + np.where(choice.index < choice.experts, choice.index, self._experts))
            for choice in self._choices
        ]
        self._choices.clear()
        if not places:
            return np.zeros((sequences, self._experts), dtype=np.int64)
        flat = np.concatenate([place.reshape(-1) for place in places])
        counts = np.bincount(flat, minlength=sequences * width).reshape(sequences, width)[:, :-1]
        self.total += counts.sum(axis=0)
        return counts
