"""From mapped weights to what computes: each layer's experts packed for the kernel that was chosen.

A packing kernel copies; the mapped files are given back as soon as nobody holds their GroupWeights any more, so weights
are resident once. Which kernel runs and why, and the bytes it keeps, are logged and told by Describe.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from moe.expert.weights import GroupWeights
from moe.kernels.ffn import DEFAULT_TILE_ROWS
from moe.kernels.group_ffn import AUTO, W8A8, Expert, PackedGroup, QuantisedExpert, backends
from moe.kernels.registry import UnknownBackendError
from moe.runtime.errors import StartupError

logger = logging.getLogger("moe.expert")


@dataclass(frozen=True)
class Computation:
    """How rows are computed. backend: of moe.kernels.group_ffn. deterministic: a row's bits depend on the row alone."""

    backend: str = AUTO
    deterministic: bool = False

    def check(self) -> None:
        """Raises StartupError for a back end that is not there or can't run here."""
        try:
            backends.resolve(self.backend)
        except UnknownBackendError as error:
            raise StartupError(f"kernel: {error}") from error

    @property
    def chosen(self) -> str:
        """The back end to ask for. Deterministic, `auto` is the first that can run: what is faster by a hair today may
        not be tomorrow, and another back end has other bits."""
        return backends.resolve(self.backend) if self.deterministic else self.backend


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """What a group computes with. layers: layer -> its experts, packed. hidden: columns of a row."""

    experts: tuple[int, ...]
    dtype: torch.dtype
    hidden: int
    layers: Mapping[int, PackedGroup]

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Every (layer, expert) that is held, ascending."""
        return tuple((layer, expert) for layer in sorted(self.layers) for expert in self.layers[layer].experts)

    @property
    def kernel(self) -> str:
        """The back end that runs."""
        return next(iter(self.layers.values())).backend

    @property
    def kernel_why(self) -> str:
        """Why it does."""
        return next(iter(self.layers.values())).why

    def entries(self) -> dict[int, tuple[int, int]]:
        """For each layer where the kernels are called without the interpreter; none where they can't be."""
        try:
            return {layer: group.entry() for layer, group in self.layers.items()}
        except ValueError:  # another back end than the C++ one
            return {}

    @property
    def bytes(self) -> int:
        """Bytes of weights that are resident, or mapped and read."""
        return sum(group.bytes for group in self.layers.values())


def pack(weights: GroupWeights, computation: Computation) -> PackedWeights:
    """Packs every layer. Raises StartupError for a back end that is not there or can't run here."""
    computation.check()
    chosen = computation.chosen
    if chosen == W8A8 and not any(isinstance(each, QuantisedExpert) for each in _experts(weights)):
        raise StartupError(
            f"kernel: {W8A8} rounds the rows of 8-bit experts, and none of these is; make a package that has them with "
            "`moe quantize`, or take native"
        )
    tile_rows = DEFAULT_TILE_ROWS if computation.deterministic and chosen not in backends.batch_invariant else None
    layers = {
        layer: PackedGroup(experts, weights.spec, backend=chosen, tile_rows=tile_rows)
        for layer, experts in sorted(weights.layers.items())
    }
    packed = PackedWeights(weights.experts, weights.dtype, weights.hidden, layers)
    logger.info(
        "kernel %s (%s), %.1f MiB of weights in %d layers",
        packed.kernel,
        packed.kernel_why,
        packed.bytes / 2**20,
        len(layers),
    )
    return packed


def _experts(weights: GroupWeights) -> Iterator[Expert]:
    return (expert for layer in weights.layers.values() for expert in layer.values())
