"""Softmax attention of packed rows over a cache of slots: make a `SlotAttention` of its slabs, then call it.

Each row sees a range of one slot's keys, read in place. Back ends: `reference`, and `native` (kernels/csrc), which is
batch-invariant: a row's bits depend on its query and its keys alone, not on what else is in the call or in the slot.
"""

import torch
from moe.kernels.attention.native_backend import NativeAttention
from moe.kernels.attention.ranges import KeyRanges
from moe.kernels.attention.reference import ReferenceAttention
from moe.kernels.dtypes import float_number
from moe.kernels.native import unavailable as native_unavailable
from moe.kernels.registry import AUTO, Registry
from torch import Tensor

backends: Registry[type[NativeAttention] | type[ReferenceAttention]] = Registry(
    "attention",
    ("native", "reference"),
    {"reference": ReferenceAttention, "native": NativeAttention},
    unavailable={"native": native_unavailable},
    batch_invariant=frozenset({"native", "reference"}),
)


class SlotAttention:
    """keys [slots, heads, tokens, size] and values [slots, heads, tokens, v]: a layer's cache, of which views are kept.

    groups: query heads that share a key head. Scores and softmax are float32, the result is rounded once. run: what the
    back end made. Raises ValueError for shapes and dtypes that don't fit, UnknownBackendError, UnavailableBackendError.
    """

    def __init__(self, keys: Tensor, values: Tensor, *, groups: int, backend: str = AUTO) -> None:
        _check(keys, values, groups)
        self.backend = backends.resolve(backend)
        self._slots, self._tokens = keys.shape[0], keys.shape[2]
        self._key, self._value = (keys.shape[1], keys.shape[3]), (values.shape[1], values.shape[3])
        self._query = (keys.shape[1] * groups, keys.shape[3], keys.dtype)
        self.run = backends.get(self.backend)(keys, values, groups)

    def __call__(self, query: Tensor, ranges: KeyRanges, *, scale: float, sinks: Tensor | None = None) -> Tensor:
        """Queries [n, heads * groups, size] to [n, heads * groups, v]. Ranges have to lie inside the cache.

        sinks: floats [heads * groups], for each query head a score that takes its share of the softmax and has no value
        (GPT-OSS), or None. Raises ValueError for a query that doesn't fit, and for ranges of another length.
        """
        heads, size, dtype = self._query
        if query.shape != (len(ranges), heads, size) or query.dtype != dtype:
            got = f"{query.dtype} {list(query.shape)}"
            raise ValueError(f"query: got {got}, want {dtype} {[len(ranges), heads, size]}")
        if sinks is not None and tuple(sinks.shape) != (heads,):
            raise ValueError(f"sinks: got shape {list(sinks.shape)}, want [{heads}]")
        return self.run(query, ranges, scale, sinks)

    def store(self, keys: Tensor, values: Tensor, ranges: KeyRanges) -> None:
        """Puts each row's keys [n, heads, size] and values [n, heads, v] where its range ends: token ends[i] - 1.

        Raises ValueError for shapes and dtypes that don't fit.
        """
        for name, rows, wanted in (("keys", keys, self._key), ("values", values, self._value)):
            if rows.shape != (len(ranges), *wanted) or rows.dtype != self._query[2]:
                got = f"{rows.dtype} {list(rows.shape)}"
                raise ValueError(f"{name}: got {got}, want {self._query[2]} {[len(ranges), *wanted]}")
        self.run.store(keys, values, ranges)

    def check(self, ranges: KeyRanges) -> None:
        """Raises ValueError for ranges that are empty or leave the cache; a call itself doesn't look."""
        if not len(ranges):
            return
        bad = (
            (ranges.slots < 0)
            | (ranges.slots >= self._slots)
            | (ranges.firsts < 0)
            | (ranges.ends <= ranges.firsts)
            | (ranges.ends > self._tokens)
        )
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            at = f"slot {int(ranges.slots[row])}, tokens {int(ranges.firsts[row])} to {int(ranges.ends[row])}"
            raise ValueError(f"row {row}: {at}; the cache holds {self._slots} slots of {self._tokens} tokens")


def _check(keys: Tensor, values: Tensor, groups: int) -> None:
    float_number(keys.dtype, "keys")
    if keys.dim() != 4 or values.dim() != 4 or keys.shape[:3] != values.shape[:3] or keys.dtype != values.dtype:
        got = f"{keys.dtype} {list(keys.shape)} and {values.dtype} {list(values.shape)}"
        raise ValueError(f"keys and values: got {got}, want [slots, heads, tokens, size] of one dtype")
    if keys.stride(3) != 1 or values.stride(3) != 1:
        raise ValueError("keys and values: the last dimension has to be contiguous")
    if groups < 1:
        raise ValueError(f"groups: got {groups}, want at least 1")
    for name, tensor in (("keys", keys), ("values", values)):
        if tensor.device != torch.device("cpu"):
            raise ValueError(f"{name}: is on {tensor.device}; this operator computes on cpu")


__all__ = ["AUTO", "KeyRanges", "SlotAttention", "backends"]
