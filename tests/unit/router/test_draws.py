"""Counter-based random numbers: the published sequence, uniform, and the same whatever else is drawn."""

import numpy as np
import pytest
from moe.router.draws import splitmix64, uniforms


def test_positions_count_along_the_published_sequence() -> None:
    # First outputs of SplitMix64 seeded with 1234567, as printed by its reference implementation.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert splitmix64([1234567] * 4, range(4)).tolist() == published


def test_the_largest_seed_and_position_wrap_without_complaint() -> None:
    mask = 2**64 - 1
    state = (mask + 2**32 * 0x9E3779B97F4A7C15) & mask
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    assert splitmix64([mask], [2**32 - 1]).tolist() == [state ^ (state >> 31)]


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    together = uniforms([7, 8, 9], [100, 3, 5])
    assert [float(uniforms([s], [p])[0]) for s, p in [(7, 100), (8, 3), (9, 5)]] == together.tolist()


@pytest.mark.parametrize(("seeds", "positions"), [(range(20_000), [3] * 20_000), ([5] * 20_000, range(20_000))])
def test_draws_are_uniform_over_seeds_and_over_positions(seeds: range, positions: range) -> None:
    # Chi-squared over 100 bins, 99 degrees of freedom: 161 is its quantile at 1 - 1e-4.
    counts = np.bincount((uniforms(seeds, positions) * 100).astype(int), minlength=100)
    assert float(((counts - 200) ** 2 / 200).sum()) < 161
