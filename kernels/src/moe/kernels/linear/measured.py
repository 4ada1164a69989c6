"""What `auto` takes for a linear layer: the fastest back end on this machine, measured once per process and shape.

A slice of the layer is timed at one row and at eight, a few milliseconds in all: one row tells how the weight streams,
eight how it is computed with. Fastest is the least product of both times.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from moe.kernels.dtypes import dtype_name
from moe.kernels.linear.onednn_backend import unsupported
from moe.kernels.quantised import QuantisedWeight, Weight, weight_dtype
from moe.kernels.registry import Registry
from torch import Tensor

logger = logging.getLogger("moe.kernels")

_ROWS = (1, 8)
_SLICE = 256
"""Output channels that are timed."""
_REPEATS = 5
_HOPELESS = 3.0
"""A back end this many times slower at one row is not timed at eight: bfloat16 without instructions takes seconds."""


class Layer(Protocol):
    """A back end's layer."""

    @property
    def bytes(self) -> int:
        """Bytes kept resident."""

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] to [n, out]."""


Factory = Callable[[Weight, Tensor | None], Layer]
_choices: dict[tuple[object, ...], tuple[str, str]] = {}


def choose(backends: Registry[Factory], weight: Weight) -> tuple[str, str]:
    """The back end to take for a weight and why, cached by shape, dtype and number of threads."""
    dtype, threads = weight_dtype(weight), torch.get_num_threads()
    group_size = weight.group_size if isinstance(weight, QuantisedWeight) else None
    key = (*weight.shape, dtype, group_size, threads)
    if key not in _choices:
        _choices[key] = _measure(backends, weight, dtype)
        name, why = _choices[key]
        logger.info("linear %s %s, threads %d: %s (%s)", list(weight.shape), dtype_name(dtype), threads, name, why)
    return _choices[key]


def _measure(backends: Registry[Factory], weight: Weight, dtype: torch.dtype) -> tuple[str, str]:
    names, left_out = _candidates(backends, dtype)
    part = _slice(weight)
    layers = {name: backends.get(name)(part, None) for name in names}
    compute = torch.float32 if dtype == torch.int8 else dtype
    first = {name: _seconds(layer, weight.shape[1], _ROWS[0], compute) for name, layer in layers.items()}
    best = min(first.values())
    times = {
        name: (seconds, _seconds(layers[name], weight.shape[1], _ROWS[1], compute))
        for name, seconds in first.items()
        if seconds <= _HOPELESS * best
    }
    taken = min(times, key=lambda name: times[name][0] * times[name][1])
    words = [_words(name, first[name], times.get(name)) for name in names] + left_out
    return taken, "; ".join(words)


def _candidates(backends: Registry[Factory], dtype: torch.dtype) -> tuple[list[str], list[str]]:
    """Those to time, and a word on each that can't run."""
    reasons = {name: backends.why_not(name) for name in ("native", "onednn", "torch")}
    if reasons["onednn"] is None:
        reasons["onednn"] = unsupported(dtype)
    names = [name for name, why in reasons.items() if why is None]
    return names, [f"{name}: {why}" for name, why in reasons.items() if why is not None]


def _slice(weight: Weight) -> Weight:
    if isinstance(weight, QuantisedWeight):
        return replace(weight, q=weight.q[:_SLICE], scale=weight.scale[:_SLICE], offset=weight.offset[:_SLICE])
    return weight[:_SLICE]


@torch.inference_mode()
def _seconds(layer: Layer, columns: int, count: int, dtype: torch.dtype) -> float:
    """The least of a few times; the first call is not counted unless it is hopeless."""
    rows = torch.zeros(count, columns, dtype=dtype)
    times = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        layer(rows)
        times.append(time.perf_counter() - start)
        if times[-1] > 0.005:
            break
    return min(times)


def _words(name: str, first: float, both: tuple[float, float] | None) -> str:
    if both is None:
        return f"{name} {first * 1e6:.0f} µs for 1 row"
    return f"{name} {both[0] * 1e6:.0f} µs for {_ROWS[0]} row and {both[1] * 1e6:.0f} for {_ROWS[1]}"
