"""Attention over a slot cache: against float64, to the bit among itself, what it may read, its refusals."""

import pytest
import torch
from moe.kernels.attention import KeyRanges, SlotAttention, backends
from moe.kernels.attention.native_backend import NativeAttention
from moe.kernels.attention.reference import ReferenceAttention
from moe.kernels.native import variants
from moe.kernels.registry import UnknownBackendError
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIZES = {
    "one of each": (1, 1, 1, 1),
    "below a register": (2, 3, 5, 3),
    "registers and a tail": (3, 2, 80, 48),
    "a common head": (2, 4, 64, 64),
    "latent": (1, 40, 72, 64),
}
"""(heads, groups, size, value size): the least; odd; more than four vectors; plain; more groups than one task takes."""

SLOTS, TOKENS = 4, 100
RANGES = {"one key": (1, 0, 1), "a block": (0, 3, 35), "all": (3, 0, TOKENS), "the end": (2, 97, TOKENS)}
"""(slot, first, end)."""


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def slabs(size: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    heads, _, key, value = size
    return drawn(SLOTS, heads, TOKENS, key, dtype=dtype), drawn(SLOTS, heads, TOKENS, value, dtype=dtype, seed=1)


def ranges(*rows: tuple[int, int, int]) -> KeyRanges:
    columns = torch.tensor(rows, dtype=torch.int32).reshape(-1, 3).T.contiguous()
    return KeyRanges(columns[0], columns[1], columns[2])


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("sunk", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("variant", variants())
def test_every_instruction_set_agrees_with_float64(variant, size, sunk, dtype):
    (heads, groups, key, _), rows = size, ranges(*RANGES.values())
    keys, values = slabs(size, dtype)
    query = drawn(len(rows), heads * groups, key, dtype=dtype, seed=2)
    sinks = drawn(heads * groups, seed=3) if sunk else None
    got = NativeAttention(keys, values, groups, variant=variant)(query, rows, key**-0.5, sinks)
    want = ReferenceAttention(keys.double(), values.double(), groups)(query.double(), rows, key**-0.5, sinks)
    # Float32 all the way: a score's error is that of a sum of `key` products, and turns up in the shares as a factor;
    # values are averaged. Then one rounding.
    shares = (key + TOKENS) * 2**-23 * 8
    limit = values.abs().max() * shares + want.abs() * torch.finfo(dtype).eps / 2
    assert ((got.double() - want).abs() <= limit + torch.finfo(dtype).tiny).all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("variant", variants())
def test_a_row_has_the_same_bits_alone_and_among_others(variant, threads):
    size = SIZES["a common head"]
    keys, values = slabs(size, torch.bfloat16)
    many = [*RANGES.values()] * 20  # enough work for several threads
    query = drawn(len(many), 8, 64, dtype=torch.bfloat16, seed=2)
    attention = NativeAttention(keys, values, 4, variant=variant)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = attention(query, ranges(*many), 0.125, None)
        alone = [attention(query[i : i + 1], ranges(row), 0.125, None) for i, row in enumerate(many)]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(bits(together), bits(torch.cat(alone)))


CHUNKS = {
    "full": [(2, 0, end) for end in range(20, 70)],
    "a window": [(2, max(0, end - 21), end) for end in range(1, 70)],
    "chunked": [(2, (end - 1) // 16 * 16, end) for end in range(1, 70)],
    "backwards": [(2, 0, end) for end in range(70, 30, -1)],
    "two slots": [(slot, 0, end) for slot in (1, 3) for end in range(40, 60)],
}
"""Rows of one slot after the other, which the native kernel takes together: (slot, first, end)."""


@pytest.mark.parametrize("groups", [1, 3, 8])
@pytest.mark.parametrize("rows", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("variant", variants())
def test_a_chunk_s_row_has_the_bits_that_it_has_alone_and_reads_its_own_keys_alone(variant, rows, groups):
    keys, values = slabs((2, groups, 40, 24), torch.bfloat16)
    query = drawn(len(rows), 2 * groups, 40, dtype=torch.bfloat16, seed=2)
    attention = NativeAttention(keys, values, groups, variant=variant)
    alone = torch.cat([attention(query[i : i + 1], ranges(row), 0.2, None) for i, row in enumerate(rows)])
    assert torch.equal(bits(attention(query, ranges(*rows), 0.2, None)), bits(alone))
    last = max(end for _, _, end in rows) - 1
    keys[:, :, last], values[:, :, last] = float("nan"), float("nan")
    blind = torch.tensor([end <= last for _, _, end in rows])
    spoilt = attention(query, ranges(*rows), 0.2, None)
    assert torch.equal(bits(spoilt[blind]), bits(alone[blind]))
    assert spoilt[~blind].isnan().all()


@pytest.mark.parametrize("variant", variants())
def test_nothing_outside_a_row_s_range_is_read(variant):
    size = SIZES["registers and a tail"]
    keys, values = slabs(size)
    query, rows = drawn(1, 6, 80, seed=2), ranges((1, 10, 43))
    want = NativeAttention(keys, values, 2, variant=variant)(query, rows, 0.1, None)
    keep = torch.zeros(SLOTS, 1, TOKENS, 1, dtype=torch.bool)
    keep[1, :, 10:43] = True
    spoilt = [slab.masked_fill(~keep, float("nan")) for slab in (keys, values)]
    got = NativeAttention(*spoilt, 2, variant=variant)(query, rows, 0.1, None)
    assert torch.equal(bits(got), bits(want))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("variant", variants())
def test_a_number_that_is_none_stays_in_its_own_row_and_head(variant, bad):
    keys, values = slabs(SIZES["a common head"])
    query, rows = drawn(3, 8, 64, seed=2), ranges((0, 0, 50), (0, 0, 50), (1, 0, 50))
    attention = NativeAttention(keys, values, 4, variant=variant)
    want = attention(query, rows, 0.125, None)
    query[1, 5, 7] = bad
    got = attention(query, rows, 0.125, None)
    assert not torch.isfinite(got[1, 5]).all()
    untouched = torch.ones(3, 8, dtype=torch.bool)
    untouched[1, 5] = False
    assert torch.equal(bits(got[untouched]), bits(want[untouched]))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_strided_slabs_and_queries_are_read_where_they_lie(backend):
    keys = drawn(SLOTS, 2, TOKENS, 96)
    query = drawn(2, 4, 64, seed=2).transpose(0, 1)  # [4, 2, 64]: rows beside heads
    rows = ranges(*RANGES.values())
    latent = SlotAttention(keys[..., :64], keys[..., 32:80], groups=1, backend=backend)
    plain = SlotAttention(keys[..., :64].clone(), keys[..., 32:80].clone(), groups=1, backend=backend)
    assert torch.equal(latent(query, rows, scale=1.0), plain(query.contiguous(), rows, scale=1.0))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_is_stored_is_where_the_ranges_end(backend, dtype):
    keys, values = (torch.zeros(SLOTS, 2, TOKENS, size, dtype=dtype) for size in (5, 3))
    new_keys = drawn(2, 3, 5, dtype=dtype).transpose(0, 1)
    new_values = drawn(3, 2, 3, dtype=dtype, seed=1)
    attention = SlotAttention(keys, values, groups=1, backend=backend)
    attention.store(new_keys, new_values, ranges((3, 0, 1), (3, 0, 2), (0, 50, TOKENS)))
    places = ((3, 0), (3, 1), (0, TOKENS - 1))
    assert all(torch.equal(keys[slot, :, token], new_keys[i]) for i, (slot, token) in enumerate(places))
    assert all(torch.equal(values[slot, :, token], new_values[i]) for i, (slot, token) in enumerate(places))
    assert int((keys != 0).any(dim=-1).sum()) == 2 * 3


def test_no_rows_are_no_work():
    keys, values = slabs(SIZES["a common head"])
    attention = SlotAttention(keys, values, groups=4)
    assert attention(torch.zeros(0, 8, 64), ranges(), scale=1.0).shape == (0, 8, 64)


def test_a_range_without_keys_is_refused_by_name():
    keys, values = slabs(SIZES["a common head"])
    attention = SlotAttention(keys, values, groups=4, backend="native")
    with pytest.raises(RuntimeError, match="row 1: got keys 5 to 5"):
        attention(torch.zeros(2, 8, 64), ranges((0, 0, 1), (0, 5, 5)), scale=1.0)


@pytest.mark.parametrize("row", [(SLOTS, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 4, 4), (0, 0, TOKENS + 1)])
def test_ranges_outside_the_cache_are_found(row):
    keys, values = slabs(SIZES["a common head"])
    with pytest.raises(ValueError, match="row 1: slot"):
        SlotAttention(keys, values, groups=4).check(ranges((0, 0, 1), row))


def test_shapes_that_do_not_fit_are_refused_with_what_was_got():
    keys, values = slabs(SIZES["a common head"])
    attention = SlotAttention(keys, values, groups=4)
    with pytest.raises(ValueError, match=r"query: got torch.float32 \[1, 7, 64\]"):
        attention(torch.zeros(1, 7, 64), ranges((0, 0, 1)), scale=1.0)
    with pytest.raises(ValueError, match="sinks: got shape"):
        attention(torch.zeros(1, 8, 64), ranges((0, 0, 1)), scale=1.0, sinks=torch.zeros(7))
    with pytest.raises(ValueError, match="keys: got"):
        attention.store(torch.zeros(1, 2, 63), torch.zeros(1, 2, 64), ranges((0, 0, 1)))
    with pytest.raises(ValueError, match="keys and values"):
        SlotAttention(keys, values[:, :, :50], groups=4)
    with pytest.raises(ValueError, match="groups: got 0"):
        SlotAttention(keys, values, groups=0)
    with pytest.raises(ValueError, match=r"ends: got torch\.int64"):
        KeyRanges(*torch.zeros(2, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(UnknownBackendError, match="attention: no back end 'cuda'"):
        SlotAttention(keys, values, groups=4, backend="cuda")


def test_native_is_what_auto_takes_where_it_is_built():
    keys, values = slabs(SIZES["a common head"])
    assert SlotAttention(keys, values, groups=4).backend == "native"
    assert backends.batch_invariant == {"native", "reference"}
