"""A group's experts in one call: against float64, torch's roundings and itself to the bit, and its refusals."""

import ctypes
import gc

import pytest
import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec, ffn
from moe.kernels.group_ffn import W8A8, PackedGroup, QuantisedExpert, backends
from moe.kernels.group_ffn.native_backend import NativeGroup
from moe.kernels.group_ffn.weights import plain
from moe.kernels.native import variants
from moe.kernels.quantised import quantise
from moe.kernels.registry import UnavailableBackendError
from support.ffn_cases import SIZES, SPECS, rows, tolerance, weights, widened
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
EXPERTS = (0, 3, 5)
SPECS = SPECS | {
    "ungated_silu": FfnSpec("silu", gated=False, bias=False),
    "ungated_gelu_tanh_biased": FfnSpec("gelu_tanh", gated=False, bias=True),
}

SLOTS = {
    "none": [],
    "one": [(0, 3)],
    "a row without slots": [(1, 5)],
    "all to one expert": [(row, 0) for row in range(29)],
    "two each": [(row, expert) for row in range(20) for expert in EXPERTS[row % 2 : row % 2 + 2]],
    "ragged": [(row, expert) for row in range(40) for expert in EXPERTS[: row % 4]],
}
"""(row, expert): the ends, one expert with several tiles, several with remainders, rows without slots in between."""

GROUPS = {name: (lambda experts, spec, name=name: NativeGroup(experts, spec, variant=name)) for name in variants()}
GROUPS["torch"] = lambda experts, spec: PackedGroup(experts, spec, backend="torch")
GROUPS["reference"] = lambda experts, spec: PackedGroup(experts, spec, backend="reference")


def slots(pairs: list[tuple[int, int]], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    index = torch.tensor(pairs, dtype=torch.int32).view(-1, 2)
    drawn = torch.rand(len(pairs), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return index[:, 0].contiguous(), index[:, 1].contiguous(), drawn.to(dtype)


def experts(spec: FfnSpec, size: tuple[int, int], dtype: torch.dtype) -> dict:
    return {expert: weights(spec, *size, dtype, seed=expert) for expert in EXPERTS}


def expected(held: dict, spec: FfnSpec, given: Tensor, chosen: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype):
    """The sum in float64, and how far rounding to dtype may move it: each expert's tolerance and the products'."""
    want, limit = torch.zeros(len(given), given.shape[1]).double(), torch.zeros(len(given), given.shape[1]).double()
    for row, expert, weight in zip(*(tensor.tolist() for tensor in chosen), strict=True):
        wide = widened(held[expert])
        out = ffn(given[row : row + 1].double(), wide, spec, backend="reference")[0]
        want[row] += weight * out
        limit[row] += abs(weight) * (
            tolerance(dtype, spec, wide, given[row : row + 1])[0] + 2 * torch.finfo(dtype).eps * out.abs()
        )
    return want, limit + 2 * torch.finfo(dtype).eps * want.abs() + torch.finfo(dtype).tiny


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("pairs", SLOTS.values(), ids=SLOTS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("group", [name for name in GROUPS if name != "reference"])
def test_every_back_end_agrees_with_the_formula_in_float64(group, spec, size, pairs, dtype):
    held, given, chosen = experts(spec, size, dtype), rows(40, size[0], dtype), slots(pairs, dtype)
    want, limit = expected(held, spec, given, chosen, dtype)
    got = GROUPS[group](held, spec)(given, *chosen, dtype)
    assert ((got.double() - want).abs() <= limit).all()


def test_the_reference_is_the_formula():
    spec, size = SPECS["clamped_swiglu"], SIZES["odd"]
    held, given, chosen = (
        experts(spec, size, torch.float64),
        rows(40, size[0], torch.float64),
        slots(SLOTS["ragged"], torch.float32),
    )
    want, _ = expected(held, spec, given, chosen, torch.float32)
    # Sums are rounded to the partial's float32.
    with pytest.raises(ValueError, match="want float32, bfloat16, float16"):
        PackedGroup(held, spec, backend="reference")
    held = {expert: weights(spec, *size, torch.float32, seed=expert) for expert in EXPERTS}
    want, limit = expected(held, spec, given, chosen, torch.float32)
    got = PackedGroup(held, spec, backend="reference")(given.float(), *chosen, torch.float32)
    assert ((got.double() - want).abs() <= limit + 1e-5).all()


@pytest.mark.parametrize("weights_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("variant", variants())
def test_it_rounds_where_torchs_operators_do(variant, spec, dtype, weights_dtype):
    # With the same roundings nearly all elements are the same to the bit; one rounding elsewhere moves a third of them.
    held, given, chosen = experts(spec, (40, 130), dtype), rows(40, 40, dtype), slots(SLOTS["two each"], weights_dtype)
    want = PackedGroup(held, spec, backend="torch")(given, *chosen, dtype)
    got = NativeGroup(held, spec, variant=variant)(given, *chosen, dtype)
    assert (got == want).double().mean() > (0.9 if dtype == torch.bfloat16 else 0.75)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("variant", variants())
def test_a_row_has_the_same_bits_alone_and_in_any_batch(variant, spec, threads, dtype):
    group = NativeGroup(experts(spec, (40, 130), dtype), spec, variant=variant)
    assert_same_bits_alone_and_together(group, threads, dtype)


def assert_same_bits_alone_and_together(group: NativeGroup, threads: int, dtype: torch.dtype) -> None:
    """40 rows one by one on the threads that there are, and all at once on so many. group: of hidden size 40."""
    given, chosen, before = rows(40, 40, dtype), slots(SLOTS["ragged"], dtype), torch.get_num_threads()
    alone = torch.cat([group(given[row : row + 1], *_of_row(chosen, row), dtype) for row in range(40)])
    torch.set_num_threads(threads)
    try:
        together = group(given, *chosen, dtype)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, alone)


def _of_row(chosen: tuple[Tensor, Tensor, Tensor], row: int) -> tuple[Tensor, Tensor, Tensor]:
    mine = chosen[0] == row
    return torch.zeros(int(mine.sum()), dtype=torch.int32), chosen[1][mine], chosen[2][mine]


@pytest.mark.parametrize("variant", variants())
def test_more_slots_than_the_scratch_holds_go_through_in_chunks(variant):
    # 24 MiB of scratch hold some 3000 slots of this size.
    spec, size = SPECS["silu"], (40, 800)
    held, given = experts(spec, size, torch.bfloat16), rows(5000, 40, torch.bfloat16)
    chosen = slots([(row, expert) for row in range(5000) for expert in EXPERTS[: row % 3]], torch.bfloat16)
    group = NativeGroup(held, spec, variant=variant)
    got = group(given, *chosen, torch.float32)
    for start in (0, 1499, 4980):
        mine = (chosen[0] >= start) & (chosen[0] < start + 20)
        part = (chosen[0][mine] - start, chosen[1][mine], chosen[2][mine])
        assert torch.equal(got[start : start + 20], group(given[start : start + 20], *part, torch.float32))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("group", GROUPS)
def test_a_poisonous_row_stays_in_its_row(group, spec, poison):
    held, given, chosen = (
        experts(spec, (13, 7), torch.float32),
        rows(20, 13, torch.float32),
        slots(SLOTS["two each"], torch.float32),
    )
    packed = GROUPS[group](held, spec)
    clean = packed(given, *chosen, torch.float32)
    given[5, 3] = poison
    got = packed(given, *chosen, torch.float32)
    others = [row for row in range(20) if row != 5]
    assert torch.equal(got[others], clean[others])
    assert not got[5].isfinite().all() or spec.activation == "clamped_swiglu"


def quantised(given: ExpertWeights, dtype: torch.dtype, group_size: int | None) -> QuantisedExpert:
    up, down = (quantise(matrix, group_size) for matrix in (given.up, given.down))
    return QuantisedExpert(up, down, dtype, given.up_bias, given.down_bias)


@pytest.mark.parametrize("group_size", [None, 16, 64])
@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_quantised_experts_agree_with_what_they_stand_for(size, spec, variant, group_size):
    held = {
        expert: quantised(given, torch.bfloat16, group_size)
        for expert, given in experts(spec, size, torch.bfloat16).items()
    }
    given, chosen = rows(40, size[0], torch.bfloat16), slots(SLOTS["ragged"], torch.bfloat16)
    want, limit = expected({e: plain(w, torch.float64) for e, w in held.items()}, spec, given, chosen, torch.bfloat16)
    for group in (NativeGroup(held, spec, variant=variant), PackedGroup(held, spec, backend="torch")):
        got = group(given, *chosen, torch.bfloat16)
        assert ((got.double() - want).abs() <= limit).all()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("variant", variants())
def test_experts_of_one_group_may_be_quantised_in_unlike_ways(variant, dtype):
    # Each has its own number of facts of a row: one, nine for down, none.
    plainly = experts(SPECS["clamped_swiglu"], (40, 130), dtype)
    held = {
        0: quantised(plainly[0], dtype, None),
        3: quantised(plainly[3], dtype, 16),
        5: plainly[5],
    }
    given, chosen = rows(40, 40, dtype), slots(SLOTS["ragged"], dtype)
    wide = {expert: plain(each, torch.float64) for expert, each in held.items()}
    want, limit = expected(wide, SPECS["clamped_swiglu"], given, chosen, dtype)
    for group in (
        NativeGroup(held, SPECS["clamped_swiglu"], variant=variant),
        PackedGroup(held, SPECS["clamped_swiglu"], backend="torch"),
    ):
        assert ((group(given, *chosen, dtype).double() - want).abs() <= 2 * limit).all()


@pytest.mark.parametrize("group_size", [None, 16])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("round_rows", [False, True], ids=["rows as they are", "rounded rows"])
@pytest.mark.parametrize("variant", variants())
def test_a_row_through_quantised_experts_has_the_same_bits_alone_and_in_any_batch(
    variant, round_rows, threads, group_size
):
    spec, dtype = SPECS["silu"], torch.bfloat16
    held = {expert: quantised(each, dtype, group_size) for expert, each in experts(spec, (40, 130), dtype).items()}
    group = NativeGroup(held, spec, variant=variant, round_rows=round_rows)
    assert_same_bits_alone_and_together(group, threads, dtype)


@pytest.mark.parametrize("round_rows", [False, True], ids=["rows as they are", "rounded rows"])
@pytest.mark.parametrize("group_size", [None, 16])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("variant", variants())
def test_a_poisonous_row_through_quantised_experts_stays_in_its_row(variant, poison, group_size, round_rows):
    spec, dtype = SPECS["silu"], torch.float32
    held = {expert: quantised(each, dtype, group_size) for expert, each in experts(spec, (40, 130), dtype).items()}
    given, chosen = rows(20, 40, dtype), slots(SLOTS["two each"], dtype)
    group = NativeGroup(held, spec, variant=variant, round_rows=round_rows)
    clean = group(given, *chosen, dtype)
    given[5, 33] = poison
    got = group(given, *chosen, dtype)
    others = [row for row in range(20) if row != 5]
    assert torch.equal(got[others], clean[others])
    assert not got[5].isfinite().any()
    assert group(given[:0], *slots([], dtype), dtype).shape == (0, 40)


@pytest.mark.parametrize("group_size", [None, 16])
@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_rounded_rows_move_a_quantised_experts_output_by_a_percent_or_two(spec, variant, group_size):
    held = {
        expert: quantised(each, torch.bfloat16, group_size)
        for expert, each in experts(spec, (40, 130), torch.bfloat16).items()
    }
    given, chosen = rows(40, 40, torch.bfloat16), slots(SLOTS["all to one expert"], torch.bfloat16)
    want = NativeGroup(held, spec, variant=variant)(given, *chosen, torch.float32)[:29]
    group = PackedGroup(held, spec, backend=W8A8) if variant == variants()[-1] else None
    rounded = NativeGroup(held, spec, variant=variant, round_rows=True)
    got = rounded(given, *chosen, torch.float32)[:29]
    # A step is 1/127 of a row's greatest value, some 2.5 standard deviations: half a percent; squares double it.
    error = (got - want).norm(dim=1) / want.norm(dim=1)
    assert 1e-4 < error.mean() < 0.02
    assert group is None or torch.equal(group(given, *chosen, torch.float32)[:29], got)
    alone = torch.cat([rounded(given[i : i + 1], *_of_row(chosen, i), torch.float32) for i in range(29)])
    assert torch.equal(alone, got)


@pytest.mark.parametrize("variant", variants())
def test_curves_are_right_over_floats_whole_range(variant):
    # One input, one weight: the output is the curve itself. Against float64, in units of the last place.
    points = torch.cat([torch.linspace(-120, 120, 2401), torch.logspace(-40, 38, 400), -torch.logspace(-40, 38, 400)])
    one = torch.ones(1, 1)
    for activation, slack, least in (("silu", 4, 1e-36), ("gelu", 8, 2e-15), ("gelu_tanh", 16, 2e-15)):
        spec = FfnSpec(activation, gated=False, bias=False)
        held = {0: type(weights(spec, 1, 1, torch.float32))(one, one)}
        chosen = (torch.arange(len(points)), torch.zeros(len(points), dtype=torch.int64), torch.ones(len(points)))
        got = NativeGroup(held, spec, variant=variant)(points[:, None], *chosen, torch.float32)[:, 0].double()
        want = ffn(points[:, None].double(), widened(held[0]), spec, backend="reference")[:, 0].nan_to_num(0.0)
        # silu ends where float's e^-x does, at -88.7, as torch's does; float64's own 1 + erf(u) and 1 + tanh(u) lose
        # their digits in the far left tail.
        limit = slack * (torch.finfo(torch.float32).eps * want.abs() * (1 + points.abs().clamp(max=120)) + least)
        near = points.abs() < 1e12
        assert ((got - want).abs() <= limit)[near].all(), activation


def test_the_c_entry_computes_the_same_without_the_interpreters_lock_and_outlives_the_object():
    spec, dtype = SPECS["clamped_swiglu"], torch.bfloat16
    held, given, chosen = experts(spec, (40, 130), dtype), rows(40, 40, dtype), slots(SLOTS["ragged"], torch.float32)
    group = PackedGroup(held, spec, backend="native")
    want = group(given, *chosen, torch.float16)
    function, handle = group.entry()
    del group, held
    gc.collect()
    pointer, number, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    signature = (
        pointer,
        pointer,
        size,
        size,
        pointer,
        pointer,
        pointer,
        number,
        size,
        pointer,
        number,
        number,
        ctypes.c_char_p,
        size,
    )
    entry = ctypes.CFUNCTYPE(number, *signature)(function)
    got, message = torch.empty(40, 40, dtype=torch.float16), ctypes.create_string_buffer(200)
    addresses = [tensor.data_ptr() for tensor in chosen]
    rest = (*addresses, 1, len(chosen[0]), got.data_ptr(), 3, 2, message, 200)
    assert entry(handle, given.data_ptr(), 40, 40, *rest) == 0
    assert torch.equal(got, want)
    chosen[1][7] = 4
    assert entry(handle, given.data_ptr(), 40, 40, *rest) != 0
    assert message.value == b"slot_experts: expert 4 is not held"


@pytest.mark.parametrize("variant", variants())
def test_rows_and_slots_may_lie_anywhere(variant):
    spec, dtype = SPECS["silu"], torch.bfloat16
    held, given, chosen = experts(spec, (40, 130), dtype), rows(40, 40, dtype), slots(SLOTS["ragged"], torch.float32)
    group = NativeGroup(held, spec, variant=variant)
    want = group(given, *chosen, dtype)
    # An odd address, as in the middle of a message.
    raw = torch.cat(
        [torch.zeros(1, dtype=torch.uint8), given.view(torch.uint8).flatten(), torch.zeros(3, dtype=torch.uint8)]
    )
    partial = torch.empty(40, 40, dtype=dtype)
    group._library.call(
        "moe_group_run",
        group._handle,
        raw.data_ptr() + 1,
        40,
        40,
        *(t.data_ptr() for t in chosen),
        1,
        len(chosen[0]),
        partial.data_ptr(),
        2,
        1,
    )
    assert torch.equal(partial, want)
    strided = (torch.stack([tensor, tensor], dim=1)[:, 1] for tensor in chosen)
    assert torch.equal(group(given.T.contiguous().T, *strided, dtype), want)


@pytest.mark.parametrize("group", GROUPS)
def test_an_expert_that_is_not_held_is_refused_by_its_id(group):
    held = experts(SPECS["silu"], (13, 7), torch.float32)
    with pytest.raises(KeyError, match="4"):
        GROUPS[group](held, SPECS["silu"])(rows(1, 13, torch.float32), *slots([(0, 4)], torch.float32), torch.float32)


@pytest.mark.parametrize("index", [[1, 0], [-1, 0], [0, 2]])
@pytest.mark.parametrize("group", GROUPS)
def test_rows_out_of_order_or_range_are_refused(group, index):
    packed = GROUPS[group](experts(SPECS["silu"], (13, 7), torch.float32), SPECS["silu"])
    chosen = (torch.tensor(index, dtype=torch.int32), torch.zeros(2, dtype=torch.int32), torch.ones(2))
    with pytest.raises((ValueError, IndexError)):
        packed(rows(2, 13, torch.float32), *chosen, torch.float32)


def test_what_does_not_fit_is_refused():
    held = experts(SPECS["silu"], (13, 7), torch.float32)
    group = PackedGroup(held, SPECS["silu"], backend="torch")
    with pytest.raises(ValueError, match=r"rows: got shape \[1, 12\], want \[n, 13\]"):
        group(torch.zeros(1, 12), *slots([(0, 3)], torch.float32), torch.float32)
    with pytest.raises(ValueError, match=r"slot_rows: got torch\.float32, want int32 or int64"):
        group(torch.zeros(1, 13), torch.zeros(1), torch.zeros(1, dtype=torch.int32), torch.ones(1), torch.float32)
    with pytest.raises(ValueError, match="expert 3: up: got shape"):
        PackedGroup({3: weights(SPECS["silu"], 13, 7, torch.float32)}, SPECS["ungated_relu2"])
    with pytest.raises(ValueError, match="experts: differ"):
        PackedGroup(held | {9: weights(SPECS["silu"], 13, 7, torch.bfloat16)}, SPECS["silu"])
    with pytest.raises(ValueError, match="'torch' has no C entry"):
        group.entry()


def test_auto_says_what_it_took_and_why(monkeypatch):
    held = experts(SPECS["silu"], (13, 7), torch.float32)
    assert "native" in PackedGroup(held, SPECS["silu"]).why
    monkeypatch.setitem(backends._unavailable, "native", lambda: "it has not been built")
    group = PackedGroup(held, SPECS["silu"])
    assert group.backend == "torch"
    assert "native: it has not been built" in group.why
    with pytest.raises(UnavailableBackendError, match="it has not been built"):
        PackedGroup(held, SPECS["silu"], backend="native")
