"""Probes: a small computation that tells whether an expert holds the weights that the manifest speaks of.

The converter sends fixed rows through every expert in float64 and keeps a sketch of the output; an expert service
repeats it in its own dtype before it says READY. It catches a swapped, shifted, transposed or mis-scaled weight;
single changed bits are the business of the files' sha256. Rows and directions come from SHAKE-256, so that they
are the same on every machine and version. It needs nothing of transformers.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PROBE_ROWS = 4
DIRECTIONS = 3
SKETCH_LENGTH = PROBE_ROWS * (1 + DIRECTIONS)

_TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-4}
"""Allowed difference, relative to a row's norm.

An output element carries a rounding error of about epsilon times the row's root mean square from each of the three
products; the error of a projection on +-1 directions is that times the square root of `hidden`, that is about epsilon
times the row's norm. Eight times epsilon for the half-wide types leaves room for cancellation; float32 gets more,
since the sums over `inner` in another order add about sqrt(inner) epsilon. Another expert's output differs by about
1.4 times the norm.
"""

_ROUNDED_ROWS_TOLERANCE = 2.0**-2
"""The same where rows are rounded to bytes. That moves an output by some percent of its norm, whatever the dtype (the
demo model's by 1.4%), and a projection by four times as much once in ten thousand; a start looks at thousands."""


@functools.lru_cache(maxsize=256)
def _row_values(hidden: int, layer: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    digest = hashlib.shake_256(f"moe.probe/v1 rows {layer} {hidden}".encode()).digest(PROBE_ROWS * hidden)
    return (np.frombuffer(digest, dtype=np.int8).reshape(PROBE_ROWS, hidden) / np.float32(64)).astype(np.float32)


def probe_rows(hidden: int, layer: int) -> Tensor:
    """Rows to send through an expert: float32 [4, hidden], uniform in [-2, 2) in steps of 1/64.

    The steps are exact in bfloat16 and float16, so that every dtype sees the same input.
    """
    return torch.from_numpy(_row_values(hidden, layer).copy())


@functools.lru_cache(maxsize=16)
def _directions(width: int) -> Tensor:
    digest = hashlib.shake_256(f"moe.probe/v1 directions {width}".encode()).digest(math.ceil(DIRECTIONS * width / 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8))[: DIRECTIONS * width]
    return torch.from_numpy(bits.reshape(DIRECTIONS, width).astype(np.float64) * 2 - 1)


def sketch(output: Tensor) -> list[float]:
    """An expert's answer [4, hidden] to the probe rows in 16 numbers: each row's norm, then three projections.

    Sums are float64, whatever the output's dtype; rounded to six digits, so that sums in another order (threads,
    processors) write the same numbers.
    """
    wide = output.detach().to("cpu", torch.float64)
    norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    values: list[float] = torch.cat([norms, wide @ _directions(wide.shape[1]).T], dim=1).flatten().tolist()
    return [float(f"{value:.5e}") for value in values]


def matches(got: Sequence[float], want: Sequence[float], dtype: torch.dtype, *, rounded_rows: bool = False) -> bool:
    """Whether two sketches agree as closely as computing in `dtype` allows; never with a non-finite number in either.

    rounded_rows: as closely as rows allow that were rounded to bytes (W8A8).
    Raises ValueError for a dtype that no tolerance is known for.
    """
    if dtype not in _TOLERANCES:
        raise ValueError(f"no tolerance for {dtype}; known are {', '.join(map(str, _TOLERANCES))}")
    if len(got) != SKETCH_LENGTH or len(want) != SKETCH_LENGTH:
        return False
    left = np.asarray(got, dtype=np.float64).reshape(PROBE_ROWS, -1)
    right = np.asarray(want, dtype=np.float64).reshape(PROBE_ROWS, -1)
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return False
    tolerance = _ROUNDED_ROWS_TOLERANCE if rounded_rows else _TOLERANCES[dtype]
    allowed = tolerance * right[:, :1] + 1e-30
    return bool((np.abs(left - right) <= allowed).all())


@dataclass(frozen=True)
class ProbeExpectation:
    """What an expert of a layer has to answer. hidden: width of the expert's rows; sketch: of the float64 answer."""

    layer: int
    expert: int
    hidden: int
    sketch: tuple[float, ...]

    @property
    def rows(self) -> Tensor:
        """The rows to send through the expert: float32 [4, hidden]."""
        return probe_rows(self.hidden, self.layer)

    def matches(self, output: Tensor, *, rounded_rows: bool = False) -> bool:
        """Whether `output` [4, hidden], computed in its dtype, is the expected answer; rounded_rows: see `matches`."""
        return matches(sketch(output), self.sketch, output.dtype, rounded_rows=rounded_rows)
