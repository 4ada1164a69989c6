"""The gate in one call: against float64, its order among equals, and rows that are not finite."""

import pytest
import torch
from moe.kernels.linear import PackedLinear
from moe.kernels.linear.native_backend import NativeLinear
from moe.kernels.native import variants
from moe.kernels.softmax_gate import Chosen, SoftmaxGate
from moe.kernels.topk import topk
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = [(0, 4, 2), (1, 1, 1), (1, 16, 2), (9, 8, 8), (50, 60, 4), (7, 128, 8), (2, 128, 128), (300, 33, 5)]
"""(rows, experts, k): no row, nothing to choose, one row, all of them, and enough rows for two threads."""

HIDDEN = 40


def drawn(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gate_of(weight: Tensor, *, normalise: bool = True, variant: str | None = None) -> SoftmaxGate:
    packed = PackedLinear(weight, backend="native")
    packed.layer = NativeLinear(weight, None, variant=variant)
    return SoftmaxGate(packed, normalise=normalise)


def from_logits(logits: Tensor, k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """Weights and ids, in float64."""
    weights, index = topk(logits.double().softmax(-1), k, backend="reference")
    return weights / weights.sum(-1, keepdim=True) if normalise else weights, index


def check(chosen: Chosen, k: int, normalise: bool, dtype: torch.dtype) -> None:
    """Given its own logits: the shares of a softmax in float32, each within a few roundings, in order."""
    logits, weights, index = chosen
    wanted, _ = from_logits(logits, k, normalise)
    assert weights.dtype == dtype
    facts = torch.finfo(dtype)
    step, subnormal = facts.eps / 2 + (logits.shape[1] + 8) * 2**-23, facts.smallest_normal * facts.eps
    assert bool(((weights.double() - wanted).abs() <= wanted * step + subnormal).all())
    shares = logits.double().softmax(-1).gather(1, index)
    assert bool((shares[:, :-1] >= shares[:, 1:] * (1 - 2**-20)).all())
    assert all(len(set(row)) == k for row in index.tolist())


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("rows", "experts", "k"), SIZES)
def test_it_gives_what_float64_gives(
    rows: int, experts: int, k: int, normalise: bool, dtype: torch.dtype, variant: str
) -> None:
    weight, hidden = drawn(experts, HIDDEN, dtype=dtype, seed=1), drawn(rows, HIDDEN, dtype=dtype, seed=2)
    for weights_dtype in (torch.float32, dtype):
        chosen = gate_of(weight, normalise=normalise, variant=variant)(hidden, k, weights_dtype)
        assert torch.equal(chosen[0], NativeLinear(weight, None, variant=variant)(hidden))
        check(chosen, k, normalise, weights_dtype)


def test_of_equal_shares_the_lowest_expert_comes_first() -> None:
    weight = torch.tensor([[1.0], [2.0], [2.0], [1.0]])
    assert gate_of(weight)(torch.ones(1, 1), 3, torch.float32)[2].tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_spoils_no_other(value: float) -> None:
    weight, rows = drawn(6, HIDDEN, dtype=torch.float32, seed=3), drawn(3, HIDDEN, dtype=torch.float32, seed=4)
    gate = gate_of(weight)
    wanted = gate(rows, 2, torch.float32)
    rows[1, 5] = value
    got = gate(rows, 2, torch.float32)
    for before, after in zip(wanted, got, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert all(0 <= expert < 6 for expert in got[2][1].tolist())
    assert len(set(got[2][1].tolist())) == 2


def test_a_row_has_the_same_bits_in_any_batch_and_at_any_stride() -> None:
    weight, rows = drawn(60, HIDDEN, dtype=torch.bfloat16, seed=5), drawn(400, HIDDEN, dtype=torch.bfloat16, seed=6)
    gate = gate_of(weight)
    together = gate(rows, 4, torch.bfloat16)
    for place in (0, 7, 399):
        alone = gate(rows[place : place + 1], 4, torch.bfloat16)
        assert all(torch.equal(one[0], every[place]) for one, every in zip(alone, together, strict=True))
    for wide in (rows.repeat(1, 2)[:, :HIDDEN], rows.t().contiguous().t()):
        assert all(torch.equal(a, b) for a, b in zip(gate(wide, 4, torch.bfloat16), together, strict=True))


def test_what_does_not_fit_is_refused() -> None:
    weight = torch.ones(4, HIDDEN)
    gate = gate_of(weight)
    with pytest.raises(ValueError, match="k: got 5, want 1 to 4"):
        gate(torch.ones(1, HIDDEN), 5, torch.float32)
    with pytest.raises(ValueError, match=rf"rows: got shape \[1, 3\], want \[n, {HIDDEN}\]"):
        gate(torch.ones(1, 3), 1, torch.float32)
    with pytest.raises(ValueError, match="weights"):
        gate(torch.ones(1, HIDDEN), 1, torch.int32)
    with pytest.raises(ValueError, match="linear: runs torch, want native"):
        SoftmaxGate(PackedLinear(weight, backend="torch"), normalise=True)
