"""Random numbers that depend on nothing but a request's seed and the position they are for.

A counter-based generator has no state, so a draw is the same whatever else is in the batch and however often a step is
done again: output number `position` of SplitMix64 started at `seed` (Steele, Lea and Flood, Fast splittable
pseudorandom number generators, OOPSLA 2014, section 4; constants of its published reference implementation).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def splitmix64(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.uint64]:
    """uint64 [n]: for each row the output number `position` (from 0) of the generator seeded with `seed`."""
    counter = np.asarray(positions, dtype=np.uint64) + np.uint64(1)
    state: NDArray[np.uint64] = np.asarray(seeds, dtype=np.uint64) + counter * _INCREMENT
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """float64 [n], each in [0, 1): the upper 53 bits of `splitmix64`."""
    return (splitmix64(seeds, positions) >> np.uint64(11)).astype(np.float64) * 2.0**-53
