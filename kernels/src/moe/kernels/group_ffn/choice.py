"""What `auto` takes for a group: the faster of native and torch on one of its experts.

Measured once per process and shape, on one expert at one row and at eight, in a few milliseconds: that is what a group
does all day, several times over.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from moe.kernels.dtypes import dtype_name
from moe.kernels.ffn import FfnSpec
from moe.kernels.group_ffn.weights import Expert, QuantisedExpert
from moe.kernels.registry import AUTO, Registry
from torch import Tensor

logger = logging.getLogger("moe.kernels")

_CANDIDATES = ("native", "torch")
_ROWS = (1, 8)
_REPEATS = 5
_LONG_S = 0.005
"""A call that takes longer is not repeated."""


class Group(Protocol):
    """A back end's group."""

    @property
    def bytes(self) -> int:
        """Bytes kept resident."""

    def __call__(
        self, rows: Tensor, slot_rows: Tensor, slot_experts: Tensor, slot_weights: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """As PackedGroup's; rows are of the experts' dtype."""


Factory = Callable[[Mapping[int, Expert], FfnSpec, int | None], Group]
_choices: dict[tuple[object, ...], tuple[str, str]] = {}


def choose(
    backends: Registry[Factory], asked: str, experts: Mapping[int, Expert], spec: FfnSpec, tile_rows: int | None
) -> tuple[str, str]:
    """The back end to take and why. Measures for `auto`, cached by shape, dtype, spec and number of threads."""
    if asked != AUTO:
        return backends.resolve(asked), "asked for by name"
    expert, some = next(iter(experts.items()))
    left_out = [f"{name}: {why}" for name in _CANDIDATES if (why := backends.why_not(name)) is not None]
    names = [name for name in _CANDIDATES if backends.why_not(name) is None]
    kind = _kind(some)
    key = (some.hidden, some.inner, kind, some.dtype, spec, tile_rows, torch.get_num_threads(), *names)
    if key not in _choices:
        _choices[key] = _measured(backends, {expert: some}, spec, tile_rows, names, left_out)
        shape = f"hidden {some.hidden}, inner {some.inner}, {kind}, threads {torch.get_num_threads()}"
        logger.info("group_ffn %s: %s (%s)", shape, *_choices[key])
    return _choices[key]


def _kind(expert: Expert) -> str:
    """What the weights are, in words."""
    if not isinstance(expert, QuantisedExpert):
        return dtype_name(expert.dtype)
    sizes = sorted({matrix.group_size for matrix in (expert.up, expert.down) if matrix.group_size is not None})
    return f"int8 in groups of {', '.join(map(str, sizes))}" if sizes else "int8"


@torch.inference_mode()
def _measured(
    backends: Registry[Factory],
    experts: Mapping[int, Expert],
    spec: FfnSpec,
    tile_rows: int | None,
    names: list[str],
    left_out: list[str],
) -> tuple[str, str]:
    costs, words = {}, []
    for name in names:
        group = backends.get(name)(experts, spec, tile_rows)
        one, several = (_seconds(group, experts, count) for count in _ROWS)
        costs[name] = one * several
        words.append(f"{name} {one * 1e6:.0f} µs for {_ROWS[0]} row and {several * 1e6:.0f} for {_ROWS[1]}")
    return min(names, key=lambda name: costs[name]), "; ".join(words + left_out)


def _seconds(group: Group, experts: Mapping[int, Expert], count: int) -> float:
    expert, some = next(iter(experts.items()))
    rows, weights = torch.zeros(count, some.hidden, dtype=some.dtype), torch.ones(count)
    slot_rows, slot_experts = torch.arange(count, dtype=torch.int32), torch.full((count,), expert, dtype=torch.int32)
    times: list[float] = []
    while len(times) <= _REPEATS and (not times or times[-1] < _LONG_S):
        start = time.perf_counter()
        group(rows, slot_rows, slot_experts, weights, some.dtype)
        times.append(time.perf_counter() - start)
    return min(times)
