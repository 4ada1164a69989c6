"""An attention layer's way from hidden states into its cache in one call of kernels/csrc.

Product with the joined query, key and value weights, norms of queries and keys, rotary angles, and the store: each
rounds where torch's operators do, so that only the product's order of addition differs. Native alone; where it isn't
built, callers go operator by operator.
"""

from ctypes import byref
from dataclasses import dataclass

import torch
from moe.kernels.attention.native_backend import NativeAttention
from moe.kernels.attention.ranges import KeyRanges
from moe.kernels.linear import PackedLinear
from moe.kernels.linear.native_backend import NativeLinear
from moe.kernels.native.library import ProjectionStruct, RotaryStruct, library, variant_number
from torch import Tensor


@dataclass(frozen=True)
class HeadNorms:
    """Root-mean-square norms of queries and keys: floats [head size], or [heads * head size] for whole rows of heads.

    round_first: see moe.kernels.rms_norm.RmsNorm.
    """

    query: Tensor
    key: Tensor
    epsilon: float
    round_first: bool


class Rotary:
    """Angles of each row's position, cos and sin [n, width] of the rows' dtype (Su et al., RoFormer, section 3.2).

    Element i of a head is turned with element i + half. halves: cos holds one angle for both (GPT-OSS), so that
    half = width; else the angles are written twice, and half = width / 2. Elements from 2 * half on stay as they are.
    """

    def __init__(self, cos: Tensor, sin: Tensor, *, halves: bool) -> None:
        if cos.shape != sin.shape or cos.dim() != 2 or cos.dtype != sin.dtype or cos.stride() != sin.stride():
            got = f"{cos.dtype} {list(cos.shape)} and {sin.dtype} {list(sin.shape)}"
            raise ValueError(f"cos and sin: got {got}, want two [n, width] alike")
        if cos.stride(1) != 1:
            raise ValueError("cos and sin: the last dimension has to be contiguous")
        self.cos, self.sin, self.halves = cos, sin, halves
        half = cos.shape[1] if halves else cos.shape[1] // 2
        self.struct = RotaryStruct(cos.data_ptr(), sin.data_ptr(), cos.stride(0), half, 0 if halves else half)
        self.pointer = byref(self.struct)


class Projection:
    """qkv: a packed layer of back end `native`, whose output is the query heads, then the key and the value heads.
    struct: for kernels/csrc.

    Raises ValueError for another back end and for sizes that don't fit.
    """

    def __init__(
        self, qkv: PackedLinear, *, query_heads: int, key_heads: int, head_size: int, norms: HeadNorms | None = None
    ) -> None:
        layer = qkv.layer
        if not isinstance(layer, NativeLinear):
            raise ValueError(f"qkv: runs {qkv.backend}, want native")
        self.columns = qkv.columns
        self.width = (query_heads + 2 * key_heads) * head_size
        if qkv.out != self.width:
            raise ValueError(f"qkv: has {qkv.out} outputs, want {self.width} for {query_heads} + 2 * {key_heads} heads")
        self._qkv, self._library, self._variant = qkv, library(), variant_number(None)
        self._norms = norms and HeadNorms(_floats(norms.query), _floats(norms.key), norms.epsilon, norms.round_first)
        struct = ProjectionStruct(
            qkv=layer.handle, query_heads=query_heads, key_heads=key_heads, head_size=head_size, epsilon=0.0
        )
        if self._norms is not None:
            whole = self._norms.query.shape[0] == query_heads * head_size and query_heads > 1
            _check_norms(self._norms, query_heads if whole else 1, key_heads if whole else 1, head_size)
            struct.query_norm, struct.key_norm = self._norms.query.data_ptr(), self._norms.key.data_ptr()
            struct.epsilon, struct.whole_norm = self._norms.epsilon, int(whole)
            struct.round_first = int(self._norms.round_first)
        self.struct = struct
        self._pointer = byref(struct)

    def __call__(self, attention: NativeAttention, rows: Tensor, rotary: Rotary, ranges: KeyRanges) -> Tensor:
        """Rows [n, in] to [n, width]: query, key and value heads; keys and values are stored where the ranges end.

        Raises ValueError for rows and angles that don't fit.
        """
        n = len(ranges)
        check_rows(rows, [n, self.columns], rotary, attention.dtype)
        out = torch.empty(n, self.width, dtype=rows.dtype)
        self._library.call(
            "moe_project",
            self._variant,
            self._pointer,
            attention.pointer,
            rotary.pointer,
            rows.data_ptr(),
            rows.stride(0),
            n,
            ranges.slots_pointer,
            ranges.ends_pointer,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def check_rows(rows: Tensor, wanted: list[int], rotary: Rotary, dtype: torch.dtype) -> None:
    """Raises ValueError unless rows are of the wanted shape, with an angle each, and all of the cache's dtype."""
    n = wanted[0]
    if list(rows.shape) != wanted or rows.stride(1) != 1 or rotary.cos.shape[0] != n:
        got = f"{list(rows.shape)} and {list(rotary.cos.shape)}"
        raise ValueError(f"rows and angles: got {got}, want {wanted} and [{n}, width]")
    if not rows.dtype == rotary.cos.dtype == dtype:
        got = f"{rows.dtype} and {rotary.cos.dtype}"
        raise ValueError(f"rows and angles: are {got}, the cache is {dtype}")


def _floats(weight: Tensor) -> Tensor:
    return weight.detach().float().contiguous().clone()


def _check_norms(norms: HeadNorms, query: int, key: int, head_size: int) -> None:
    for name, weight, heads in (("query", norms.query, query), ("key", norms.key, key)):
        if tuple(weight.shape) != (heads * head_size,):
            raise ValueError(f"norm of {name}: got {list(weight.shape)}, want [{heads * head_size}]")
