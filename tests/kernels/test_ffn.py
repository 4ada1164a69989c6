"""The expert's feed-forward network: against float64, row by row, and its refusals."""

import pytest
import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec, backends, ffn
from moe.kernels.registry import UnknownBackendError
from support.ffn_cases import ROWS, SIZES, SPECS, rows, tolerance, weights, widened

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("count", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("tile_rows", [None, 16], ids=["whole", "tiled"])
def test_the_torch_back_end_agrees_with_the_formula_in_float64(spec, size, count, dtype, tile_rows):
    given, inputs = weights(spec, *size, dtype), rows(count, size[0], dtype)
    wide = widened(given)
    want = ffn(inputs.double(), wide, spec, backend="reference")
    got = ffn(inputs, given, spec, backend="torch", tile_rows=tile_rows)
    assert ((got.double() - want).abs() <= tolerance(dtype, spec, wide, inputs)).all()


def test_the_reference_computes_a_gated_silu_as_worked_out_by_hand():
    # gate = 2, linear = 3: silu(2) * 3 = 3 * 2 / (1 + e^-2) = 5.2847824...; down doubles it.
    given = ExpertWeights(up=torch.tensor([[1.0], [1.5]]).double(), down=torch.tensor([[2.0]]).double())
    got = ffn(torch.tensor([[2.0]]).double(), given, SPECS["silu"], backend="reference")
    assert got.item() == pytest.approx(2 * 3 * 2 / (1 + 2.718281828459045**-2), rel=1e-12)


def test_the_reference_clamps_a_swiglu_as_worked_out_by_hand():
    # gate 10 is cut to 7, linear -9 to -7: (-7 + 1) * 7 / (1 + e^(-1.702 * 7)).
    spec = FfnSpec("clamped_swiglu", gated=True, bias=False, limit=7.0, alpha=1.702)
    given = ExpertWeights(up=torch.tensor([[10.0], [-9.0]]).double(), down=torch.tensor([[1.0]]).double())
    got = ffn(torch.ones(1, 1).double(), given, spec, backend="reference")
    assert got.item() == pytest.approx(-42 / (1 + 2.718281828459045 ** (-1.702 * 7)), rel=1e-12)


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("tile_rows", [None, 16])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_poisonous_row_stays_in_its_row(spec, poison, tile_rows, backend):
    given, inputs = weights(spec, 13, 7, torch.float32), rows(20, 13, torch.float32)
    clean = ffn(inputs, given, spec, backend=backend, tile_rows=tile_rows)
    inputs[5, 3] = poison
    got = ffn(inputs, given, spec, backend=backend, tile_rows=tile_rows)
    others = [row for row in range(20) if row != 5]
    assert torch.equal(got[others], clean[others])


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("tile_rows", [None, 16])
def test_a_poisonous_row_comes_out_not_finite(tile_rows, backend):
    given, inputs = weights(SPECS["silu"], 13, 7, torch.float32), rows(20, 13, torch.float32)
    inputs[5, 3] = float("nan")
    got = ffn(inputs, given, SPECS["silu"], backend=backend, tile_rows=tile_rows)
    assert not got[5].isfinite().any()


@pytest.mark.parametrize("tile_rows", [None, 16])
def test_rows_and_weights_may_be_strided_views(tile_rows):
    spec = SPECS["clamped_swiglu"]
    given, inputs = weights(spec, 32, 64, torch.float32), rows(17, 32, torch.float32)
    strided = ExpertWeights(given.up.T.contiguous().T, given.down.T.contiguous().T, given.up_bias, given.down_bias)
    got = ffn(inputs.repeat(1, 2)[:, ::2][:, :16].repeat(1, 2), strided, spec, tile_rows=tile_rows)
    want = ffn(inputs.repeat(1, 2)[:, ::2][:, :16].repeat(1, 2).contiguous(), given, spec, tile_rows=tile_rows)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_weights_of_another_dtype_decide_the_outputs_dtype():
    given = weights(SPECS["silu"], 13, 7, torch.bfloat16)
    assert ffn(rows(3, 13, torch.float32), given, SPECS["silu"]).dtype == torch.bfloat16


def test_an_unknown_back_end_is_refused_with_the_known_ones():
    given = weights(SPECS["silu"], 13, 7, torch.float32)
    with pytest.raises(UnknownBackendError, match=r"no back end 'cuda'; choose one of auto, reference, torch"):
        ffn(rows(1, 13, torch.float32), given, SPECS["silu"], backend="cuda")


def test_auto_is_the_torch_back_end():
    assert backends.resolve("auto") == "torch"


@pytest.mark.parametrize("shape", [(13,), (2, 12), (1, 2, 13)])
def test_rows_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"want \[n, 13\]"):
        ffn(torch.zeros(shape), weights(SPECS["silu"], 13, 7, torch.float32), SPECS["silu"])


def test_integer_rows_are_refused():
    with pytest.raises(ValueError, match=r"got dtype torch\.int64, want a floating one"):
        ffn(torch.zeros(1, 13, dtype=torch.int64), weights(SPECS["silu"], 13, 7, torch.float32), SPECS["silu"])


def test_a_tile_of_no_rows_is_refused():
    with pytest.raises(ValueError, match="tile_rows: must be at least 1, got 0"):
        ffn(torch.zeros(1, 13), weights(SPECS["silu"], 13, 7, torch.float32), SPECS["silu"], tile_rows=0)
