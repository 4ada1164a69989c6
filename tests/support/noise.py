"""How far bfloat16 results may lie apart when only the order of additions differs; docs/decisions/0004 derives it."""

from typing import Any

import torch
from moe.models.contract import Experts
from support.local_experts import LocalExperts
from torch import Tensor

UNIT_ROUNDOFF = 2.0**-8
"""Of bfloat16: half a unit in the last place, relative (8 significant bits, round to nearest)."""

SECOND_ORDER = 1 + 2.0**-6
"""Roundings of roundings, and the float32 sums."""


def slot_magnitudes(local: LocalExperts, layer: int, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Float32 [n, hidden]: the sum over a row's slots of |weight * output|, no less than that over its partials."""
    rows = torch.arange(len(hidden))
    columns = [
        local(layer, hidden, index[:, k : k + 1], weights[:, k : k + 1], rows).float().abs()
        for k in range(index.shape[1])
    ]
    return torch.stack(columns).sum(0)


def element_bound(magnitudes: Tensor, total: Tensor) -> Tensor:
    """What |ours - reference| may be for each element of a layer call."""
    return UNIT_ROUNDOFF * SECOND_ORDER * (magnitudes + 2 * total.float().abs())


class CheckedExperts:
    """Answers with the distributed experts, and keeps the worst ratio of their difference to the bound."""

    def __init__(self, remote: Experts, local: LocalExperts) -> None:
        self._remote, self._local = remote, local
        self.worst = 0.0
        self.calls = 0

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        """As moe.models.contract.Experts."""
        got = self._remote(layer, hidden, index, weights, rows)
        want = self._local(layer, hidden, index, weights, rows)
        bound = element_bound(slot_magnitudes(self._local, layer, hidden, index, weights), want)
        ratio = (got.float() - want.float()).abs() / bound.clamp(min=torch.finfo(torch.float32).tiny)
        self.worst = max(self.worst, ratio.max().item())
        self.calls += 1
        return got


class NoisyExperts:
    """The single-process experts, each element moved by the bound with a random sign."""

    def __init__(self, local: LocalExperts, seed: int) -> None:
        self._local = local
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        """As moe.models.contract.Experts."""
        total = self._local(layer, hidden, index, weights, rows)
        bound = element_bound(slot_magnitudes(self._local, layer, hidden, index, weights), total)
        signs = torch.randint(0, 2, bound.shape, generator=self._generator) * 2 - 1
        return (total.float() + signs * bound).to(total.dtype)


class Recorder:
    """Passes through and keeps which experts each packed row was sent to, layer by layer."""

    def __init__(self, experts: Experts) -> None:
        self._experts = experts
        self.choices: list[tuple[int, Tensor, Tensor]] = []

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        """As moe.models.contract.Experts."""
        self.choices.append((layer, rows.clone(), index.sort(-1).values))
        return self._experts(layer, hidden, index, weights, rows)


def rows_before_a_flip(ours: Recorder, theirs: Recorder, lengths: list[int]) -> list[int]:
    """For each sequence, computed alone and one after the other: tokens before the first one routed differently.

    Both recorders saw the same forwards. A flip moves its token by more than any rounding, and all tokens after it.
    """
    same = list(lengths)
    sequence, started = 0, 0
    layers = len({layer for layer, _, _ in theirs.choices})
    for position, (mine, other) in enumerate(zip(ours.choices, theirs.choices, strict=True)):
        sequence = position // layers
        differs = (mine[2] != other[2]).any(-1)
        if bool(differs.any()):
            first = int(mine[1][differs].min())
            same[sequence] = min(same[sequence], first - started)
    return same


def largest_difference_before(got: list[Tensor], want: list[Tensor], kept: list[int]) -> float:
    """Over the first `kept` tokens of each sequence."""
    differences = [(g[:n] - w[:n]).abs().max().item() for g, w, n in zip(got, want, kept, strict=True) if n]
    return max(differences)


def whole_prompts(run: Any, sequences: list[list[int]]) -> list[Tensor]:
    """Each sequence on its own, as one chunk: run(sequences, prompts, chunk) -> logits."""
    return [run([s], [len(s)], len(s))[0] for s in sequences]
