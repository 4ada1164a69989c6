"""The root-mean-square norm: against float64, to the bit among itself, its refusals."""

import pytest
import torch
from moe.kernels.native import variants
from moe.kernels.rms_norm import NativeNorm, RmsNorm
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WIDTHS = {"one": 1, "below a register": 3, "registers": 64, "a tail": 133}


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def exact(rows: Tensor, weight: Tensor, epsilon: float, round_first: bool) -> Tensor:
    wide = rows.double()
    quotient = wide / (wide.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return (quotient.to(rows.dtype).double() if round_first else quotient) * weight.double()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("round_first", [False, True])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("variant", variants())
def test_every_instruction_set_agrees_with_float64(variant, width, round_first, dtype):
    rows, weight = drawn(5, width, dtype=dtype), drawn(width, seed=1)
    want = exact(rows, weight, 1e-5, round_first)
    # Roundings to the dtype: the product's, and the quotient's, which may fall on the other side of a tie.
    limit = want.abs() * (torch.finfo(dtype).eps * (1.5 if round_first else 0.5) + (width + 8) * 2**-24)
    got = NativeNorm(weight, 1e-5, round_first, variant=variant)(rows)
    assert ((got.double() - want).abs() <= limit + torch.finfo(dtype).tiny).all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("variant", variants())
def test_a_row_has_the_same_bits_alone_and_among_others(variant, threads):
    rows, norm = drawn(3000, 133), NativeNorm(drawn(133, seed=1), 1e-6, True, variant=variant)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = norm(rows)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together[2999:], norm(rows[2999:]))
    assert torch.equal(together[:1], norm(rows[:1]))


def test_back_ends_agree_and_take_rows_of_any_shape_and_stride():
    rows, weight = drawn(6, 4, 20).transpose(0, 1)[:, ::2], drawn(20, seed=1)
    native, plain = (RmsNorm(weight, 1e-5, round_first=False, backend=name)(rows) for name in ("native", "reference"))
    assert native.shape == rows.shape
    assert torch.allclose(native, plain, rtol=1e-6, atol=0)


def test_a_row_that_is_no_number_stays_alone():
    rows = drawn(3, 20)
    rows[1, 4] = float("nan")
    normed = RmsNorm(torch.ones(20), 1e-5, round_first=True)(rows)
    assert torch.isfinite(normed[[0, 2]]).all()
    assert not torch.isfinite(normed[1]).any()


def test_a_row_of_zeros_stays_zero():
    assert not RmsNorm(torch.ones(20), 1e-5, round_first=True)(torch.zeros(1, 20)).any()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"rows: got shape \[2, 7\], want \[\.\.\., 8\]"):
        RmsNorm(torch.ones(8), 1e-5, round_first=True)(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"weight: got torch\.int64"):
        RmsNorm(torch.ones(8, dtype=torch.int64), 1e-5, round_first=True)
    with pytest.raises(ValueError, match="rows"):
        RmsNorm(torch.ones(8), 1e-5, round_first=True)(torch.zeros(2, 8, dtype=torch.int64))
