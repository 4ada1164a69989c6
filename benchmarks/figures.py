"""Numbers out of samples: medians, percentiles, spread, paired ratios. Pure; no sample is thrown away."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Of the rounds of one measurement. spread: (largest - smallest) / median; 0 for one round."""

    median: float
    least: float
    most: float
    rounds: int

    @property
    def spread(self) -> float:
        """How far the rounds lie apart, as a share of the median."""
        return (self.most - self.least) / abs(self.median) if self.median else 0.0


def percentile(samples: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks, as in numpy. Raises ValueError without samples or out of 0 to 100."""
    if not samples:
        raise ValueError("percentile: there are no samples; measure at least one")
    if not 0.0 <= percent <= 100.0:
        raise ValueError(f"percentile: got {percent}, want 0 to 100")
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100.0
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(samples: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle. Raises ValueError without samples."""
    return percentile(samples, 50.0)


def summary(samples: Sequence[float]) -> Summary:
    """Of one figure over the rounds. Raises ValueError without samples."""
    return Summary(median(samples), min(samples), max(samples), len(samples))


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median of `paired_ratios`."""
    return median(paired_ratios(numerators, denominators))


def paired_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratios round by round: what both have in common in a round, such as its load, cancels.

    Raises ValueError when the rounds don't pair up.
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"paired_ratio: {len(numerators)} rounds against {len(denominators)}; measure them in turns")
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
