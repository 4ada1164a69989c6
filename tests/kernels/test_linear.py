"""The packed linear layer: against float64, to the bit among itself, its choice and its refusals."""

import ctypes
from dataclasses import replace

import pytest
import torch
from moe.kernels.linear import PackedLinear, backends
from moe.kernels.linear.native_backend import NativeLinear
from moe.kernels.native import NativeError, library, variants
from moe.kernels.native.library import variant_number
from moe.kernels.native.matrices import matrix_struct
from moe.kernels.quantised import QuantisedWeight, quantise, rounded_product
from moe.kernels.registry import UnavailableBackendError, UnknownBackendError
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIZES = {
    "one by one": (1, 1),
    "odd": (13, 7),
    "below a panel": (5, 40),
    "panels and a tail": (101, 33),
    "wide": (64, 300),
}
"""(out, in): the least, neither a multiple of a register, fewer columns than a panel, several panels, four at once."""

ROWS = {"none": 0, "one": 1, "two": 2, "a tile": 6, "a tile and one": 7, "uneven tiles": 13, "several blocks": 800}
"""Tiles are 6 rows high on AVX2 and 12 elsewhere; 800 rows go through in two rounds."""

LAYERS = {name: (lambda weight, bias, name=name: NativeLinear(weight, bias, variant=name)) for name in variants()}
LAYERS["torch"] = lambda weight, bias: PackedLinear(weight, bias, backend="torch")
LAYERS["reference"] = lambda weight, bias: PackedLinear(weight, bias, backend="reference")


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def bound(rows: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype, biased: bool) -> Tensor:
    """Half a unit in the last place for the one rounding, and the float32 chain's: each addition rounds a partial sum
    that is at most the sum of magnitudes."""
    magnitude = rows.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.double().abs())
    chain = (weight.shape[1] + 2) * 2**-24
    return magnitude * (chain + torch.finfo(out_dtype).eps / 2) * (2 if biased else 1) + torch.finfo(out_dtype).tiny


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("count", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_every_back_end_agrees_with_float64(layer, size, count, biased, dtype):
    weight, rows = drawn(*size, dtype=dtype), drawn(count, size[1], dtype=dtype, seed=1)
    bias = drawn(size[0], dtype=dtype, seed=2) if biased else None
    want = rows.double() @ weight.double().T + (0 if bias is None else bias.double())
    # torch rounds the product before it adds a bias: twice.
    assert ((layer(weight, bias)(rows).double() - want).abs() <= bound(rows, weight, bias, dtype, biased)).all()


GROUPS = {"whole channels": None, "groups of 16": 16, "groups of 64": 64, "one short group": 512}
"""Inputs that share a scale. No input count above is a multiple of them but 64 of 64's: 33 leaves a group of one."""


def magnitudes(weight: QuantisedWeight) -> Tensor:
    """What is added up for an output in place of the weights, [out, in]: steps and offset apart."""
    return weight.q.double().abs() * weight.by_element(weight.scale) + weight.by_element(weight.offset.abs())


@pytest.mark.parametrize("group_size", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("count", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_bytes_with_scales_agree_with_what_they_stand_for(layer, count, size, dtype, group_size):
    weight, rows = quantise(drawn(*size), group_size), drawn(count, size[1], dtype=dtype, seed=1)
    wide = weight.dequantised(torch.float64)
    # The offset's part is added up apart from the steps': both round.
    limit = 2 * bound(rows, magnitudes(weight), None, dtype, False)
    assert ((layer(weight, None)(rows).double() - rows.double() @ wide.T).abs() <= limit).all()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("group_size", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("count", ROWS.values(), ids=ROWS)
def test_rounded_rows_times_bytes_are_exact_but_for_the_scales(count, size, group_size, variant, dtype):
    weight, rows = quantise(drawn(*size), group_size), drawn(count, size[1], dtype=dtype, seed=1)
    got = NativeLinear(weight, None, variant=variant, round_rows=True)(rows).double()
    want = rounded_product(rows, weight)
    # A group's sum of integers is exact; it is rounded three times in float32 and once more with each group after it,
    # the offset's part with each input, and the answer once.
    parts, groups = _parts(rows, weight), weight.scale[0].numel()
    offset = (
        rows.double().abs() @ weight.by_element(weight.offset.abs()).expand(size).T * (size[1] + groups + 3) * 2**-24
    )
    steps = parts * (groups + 3) * 2**-24
    assert ((got - want).abs() <= offset + steps + torch.finfo(dtype).eps / 2 * want.abs() + 1e-37).all()


def _parts(rows: Tensor, weight: QuantisedWeight) -> Tensor:
    """The magnitudes of what the groups add to an output without offsets, summed: [n, out]."""
    bare = replace(weight, offset=torch.zeros_like(weight.offset))
    whole = weight.shape[1] if weight.group_size is None else weight.group_size
    total = torch.zeros(len(rows), weight.shape[0]).double()
    for first in range(0, weight.shape[1], whole):
        only = torch.zeros_like(weight.q)
        only[:, first : first + whole] = weight.q[:, first : first + whole]
        total += rounded_product(rows, replace(bare, q=only)).abs()
    return total


@pytest.mark.parametrize("group_size", GROUPS.values(), ids=GROUPS)
def test_rounded_rows_of_no_size_or_beyond_all_sizes_count_as_zero_or_as_nan(group_size):
    weight = quantise(drawn(37, 20), group_size)
    rows = torch.stack([torch.zeros(20), torch.full((20,), 1e-44), torch.full((20,), float("inf")), torch.ones(20)])
    for variant in variants():
        got = NativeLinear(weight, None, variant=variant, round_rows=True)(rows)
        assert (got[:2].abs() < 1e-40).all()
        assert got[2].isnan().all()
        assert torch.allclose(got[3].double(), rounded_product(rows, weight)[3], rtol=1e-5)


WEIGHTS = {
    "bfloat16": lambda weight, **how: NativeLinear(weight.bfloat16(), drawn(700), **how),
    "int8": lambda weight, **how: NativeLinear(quantise(weight), drawn(700), **how),
    "int8 in groups": lambda weight, **how: NativeLinear(quantise(weight, 32), drawn(700), **how),
    "rounded rows": lambda weight, **how: NativeLinear(quantise(weight), drawn(700), round_rows=True, **how),
    "rounded rows in groups": lambda weight, **how: NativeLinear(
        quantise(weight, 32), drawn(700), round_rows=True, **how
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layer_of", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("variant", variants())
def test_a_row_has_the_same_bits_alone_and_in_any_place_of_any_batch(variant, threads, layer_of, dtype):
    layer = layer_of(drawn(700, 130), variant=variant)
    rows = drawn(53, 130, seed=1).to(dtype)
    alone = torch.cat([layer(row[None]) for row in rows])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        batches = [layer(rows), layer(rows.flip(0)).flip(0), torch.cat([layer(rows[:7]), layer(rows[7:])])]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(batch, alone) for batch in batches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("group_size", [None, 64], ids=["whole channels", "groups of 64"])
@pytest.mark.parametrize("inputs", [4096, 4098], ids=["widened once", "too many inputs for that"])
@pytest.mark.parametrize("variant", variants())
def test_a_row_has_the_same_bits_where_a_panel_of_bytes_is_widened_once_for_several_tiles(
    variant, inputs, group_size, dtype
):
    # With tables of bytes, the first of several tiles leaves a panel of up to 4096 inputs widened for the others.
    layer = NativeLinear(quantise(drawn(40, inputs), group_size), drawn(40), variant=variant)
    rows = drawn(37, inputs, seed=1).to(dtype)
    alone = torch.cat([layer(row[None]) for row in rows])
    for count in (12, 13, 24, 25, 37):
        assert torch.equal(layer(rows[:count]), alone[:count])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_poisonous_row_stays_in_its_row(layer, poison, dtype):
    packed, rows = layer(drawn(37, 20, dtype=dtype), None), drawn(15, 20, dtype=dtype, seed=1)
    clean = packed(rows)
    rows[5, 3] = poison
    got = packed(rows)
    others = [row for row in range(15) if row != 5]
    assert torch.equal(got[others], clean[others])
    assert not got[5].isfinite().any()


@pytest.mark.parametrize("round_rows", [False, True], ids=["rows as they are", "rounded rows"])
@pytest.mark.parametrize("group_size", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("variant", variants())
def test_a_poisonous_row_of_bytes_stays_in_its_row_whatever_group_it_strikes(variant, poison, group_size, round_rows):
    packed = NativeLinear(quantise(drawn(37, 40), group_size), None, variant=variant, round_rows=round_rows)
    rows = drawn(15, 40, seed=1)
    clean = packed(rows)
    for column in (3, 20, 39):
        given = rows.clone()
        given[5, column] = poison
        got = packed(given)
        others = [row for row in range(15) if row != 5]
        assert torch.equal(got[others], clean[others])
        assert not got[5].isfinite().any()


@pytest.mark.parametrize("variant", variants())
def test_rows_and_weights_may_be_strided_or_lie_anywhere(variant):
    weight, rows = drawn(37, 20, dtype=torch.bfloat16), drawn(9, 20, dtype=torch.bfloat16, seed=1)
    want = NativeLinear(weight, None, variant=variant)(rows)
    moved = torch.empty(181, dtype=torch.bfloat16)[1:].view(9, 20).copy_(rows)
    turned = NativeLinear(weight.T.contiguous().T, None, variant=variant)
    for given in (moved, rows.T.contiguous().T, torch.stack([rows, rows], dim=1)[:, 1], rows.repeat(1, 2)[:, :20]):
        assert torch.equal(turned(given), want)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("backend", backends.available())
def test_the_answer_has_the_rows_dtype_and_leading_sizes(backend, dtype):
    layer = PackedLinear(drawn(5, 4), backend=backend)
    got = layer(drawn(2, 3, 4, dtype=dtype))
    assert got.dtype == dtype
    assert got.shape == (2, 3, 5)


@pytest.mark.parametrize("bits", range(0, 1 << 16, 4096))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("variant", variants())
def test_every_16_bit_value_comes_through_unchanged(variant, dtype, bits):
    values = torch.arange(bits, bits + 4096).to(torch.int16).view(dtype)
    rows = values[values.isfinite()][:, None]
    layer = NativeLinear(torch.ones(1, 1, dtype=dtype), None, variant=variant)
    weights = NativeLinear(rows, None, variant=variant)
    # The pair product of bfloat16 (x86's VDPBF16PS) takes subnormals for zero, as oneDNN and so torch do with it.
    flushed = variant.endswith("dots") and dtype == torch.bfloat16
    want = torch.where(rows.abs() < torch.finfo(dtype).tiny, 0, rows) if flushed else rows
    assert torch.equal(layer(rows), want)
    assert torch.equal(weights(torch.ones(1, 1, dtype=dtype)).T, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("variant", variants())
def test_rounding_is_torchs(variant, dtype):
    # Halfway cases, subnormals, overflow: sums of a 16-bit value and a bias that float32 holds exactly.
    bits = torch.randint(-(2**31), 2**31, (20000,), generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    ties = (torch.arange(0x33000000, 0x47800000, 0x1000)).repeat_interleave(2) + torch.tensor([0, 1]).repeat(0x14800)
    values = torch.cat([bits.to(torch.int32), ties.to(torch.int32)]).view(torch.float32)
    values = values[values.isfinite()]
    layer = NativeLinear(torch.zeros(len(values), 1), values, variant=variant)
    assert torch.equal(layer(torch.ones(1, 1, dtype=dtype))[0], values.to(dtype))


def test_quantising_is_within_half_a_step_and_keeps_rows_of_one_value():
    matrix = torch.cat([drawn(7, 90), torch.full((1, 90), 0.3), torch.zeros(1, 90)])
    packed = quantise(matrix)
    error = (packed.dequantised(torch.float64) - matrix.double()).abs()
    assert (error <= packed.scale.double()[:, None] * 0.5001 + 1e-9).all()
    assert torch.equal(packed.dequantised(torch.float32)[7:], matrix[7:])


def test_each_group_is_quantised_as_a_matrix_of_its_own():
    matrix = torch.cat([drawn(7, 90), torch.full((1, 90), 0.3)])
    packed = quantise(matrix, 32)
    assert packed.scale.shape == packed.offset.shape == (8, 3)
    for group, columns in enumerate((slice(0, 32), slice(32, 64), slice(64, 90))):
        alone = quantise(matrix[:, columns])
        assert torch.equal(packed.q[:, columns], alone.q)
        assert torch.equal(packed.scale[:, group], alone.scale)
        assert torch.equal(packed.dequantised(torch.float64)[:, columns], alone.dequantised(torch.float64))


def test_a_group_larger_than_the_matrix_is_a_whole_channel_and_takes_no_more_memory():
    matrix = drawn(5, 40)
    whole, grouped = quantise(matrix), quantise(matrix, 1 << 30)
    assert torch.equal(whole.q, grouped.q)
    assert grouped.by_element(grouped.scale).untyped_storage().nbytes() <= matrix.numel() * 8
    assert torch.equal(whole.dequantised(torch.float64), grouped.dequantised(torch.float64))


def test_scales_of_another_shape_and_sizes_that_no_group_can_have_are_refused():
    whole, grouped = quantise(drawn(5, 40)), quantise(drawn(5, 40), 16)
    with pytest.raises(ValueError, match=r"scale: got torch\.float32 \[5\], want float32 \[5, 3\]"):
        replace(whole, group_size=16)
    with pytest.raises(ValueError, match=r"scale: got torch\.float32 \[5, 3\], want float32 \[5\]"):
        replace(grouped, group_size=None)
    for size in (0, -16, 8, 40):
        with pytest.raises(ValueError, match=f"group_size: got {size}, want a multiple of 16"):
            quantise(drawn(5, 40), size)


@pytest.mark.parametrize("variant", variants())
def test_the_library_refuses_groups_that_its_steps_would_straddle(variant):
    struct, handle = matrix_struct(quantise(drawn(5, 40), 16)), ctypes.c_void_p()
    for size in (24, -16):
        struct.group = size
        with pytest.raises(NativeError, match=f"weight: groups of {size} inputs, want a multiple of 16"):
            library().call("moe_linear_pack", variant_number(variant), ctypes.byref(struct), None, ctypes.byref(handle))


def test_packed_bytes_grow_by_the_groups_scales_alone():
    whole, grouped = (NativeLinear(quantise(drawn(64, 256), size), None).bytes for size in (None, 64))
    assert grouped - whole == 64 * 4 * 8


def test_auto_measures_once_and_says_what_it_took_and_why(caplog):
    weight = drawn(48, 31)
    with caplog.at_level("INFO", logger="moe.kernels"):
        first, second = PackedLinear(weight), PackedLinear(weight)
    assert first.backend == second.backend
    assert "µs for 1 row" in first.why
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"linear [48, 31] float32, threads {torch.get_num_threads()}"
    ]


def test_a_back_end_that_cannot_run_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(backends._unavailable, "native", lambda: "it has not been built")
    assert "native" not in backends.available()
    with pytest.raises(UnavailableBackendError, match="'native' can't run here: it has not been built"):
        PackedLinear(drawn(2, 2), backend="native")


def test_without_the_library_auto_says_so(monkeypatch):
    monkeypatch.setitem(backends._unavailable, "native", lambda: "it has not been built")
    layer = PackedLinear(drawn(33, 2))
    assert layer.backend != "native"
    assert "native: it has not been built" in layer.why


def test_an_unknown_back_end_is_refused_with_the_known_ones():
    with pytest.raises(UnknownBackendError, match="choose one of auto, native, onednn, reference, torch"):
        PackedLinear(drawn(2, 2), backend="cuda")


@pytest.mark.parametrize("shape", [(3,), (0, 3), (3, 0), (1, 2, 3)])
def test_a_weight_that_is_no_matrix_is_refused(shape):
    with pytest.raises(ValueError, match=r"weight: got shape .* want \[out, in\]"):
        PackedLinear(torch.zeros(shape))


def test_rows_of_another_width_or_dtype_are_refused():
    layer = PackedLinear(drawn(3, 4))
    with pytest.raises(ValueError, match=r"rows: got shape \[2, 5\], want \[\.\.\., 4\]"):
        layer(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="rows: got int64, want float32, bfloat16, float16"):
        layer(torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"bias: got torch.float32 \[4\], want floats \[3\]"):
        PackedLinear(drawn(3, 4), torch.zeros(4))
