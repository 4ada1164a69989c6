"""Probes: the same rows everywhere, sketches that tell experts apart and forgive rounding."""

import hashlib
import math

import pytest
import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec, ffn
from moe.models.probe import DIRECTIONS, SKETCH_LENGTH, ProbeExpectation, matches, probe_rows, sketch

HIDDEN, INNER = 96, 128
SPEC = FfnSpec("silu", gated=True, bias=False)


def expert(seed: int, dtype: torch.dtype) -> ExpertWeights:
    generator = torch.Generator().manual_seed(seed)
    up = torch.randn(2 * INNER, HIDDEN, generator=generator) * 0.1
    down = torch.randn(HIDDEN, INNER, generator=generator) * 0.1
    return ExpertWeights(up.to(dtype), down.to(dtype))


def answer(weights: ExpertWeights) -> torch.Tensor:
    return ffn(probe_rows(HIDDEN, 3), weights, SPEC)


def widened(weights: ExpertWeights) -> ExpertWeights:
    return ExpertWeights(weights.up.double(), weights.down.double())


def test_rows_are_those_of_shake_256() -> None:
    digest = hashlib.shake_256(b"moe.probe/v1 rows 7 5").digest(20)
    signed = [byte - 256 if byte > 127 else byte for byte in digest]

    assert probe_rows(5, 7).flatten().tolist() == [value / 64 for value in signed]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_are_exact_in_narrow_dtypes(dtype: torch.dtype) -> None:
    rows = probe_rows(512, 1)

    assert torch.equal(rows.to(dtype).float(), rows)


def test_layers_have_rows_of_their_own() -> None:
    assert not torch.equal(probe_rows(64, 0), probe_rows(64, 1))


def test_a_sketch_holds_each_rows_norm_and_projections_within_it() -> None:
    output = torch.zeros(4, 10)
    output[2, 6] = -3.0

    numbers = torch.tensor(sketch(output)).reshape(4, 1 + DIRECTIONS)

    assert numbers.abs().tolist() == [[0.0] * 4, [0.0] * 4, [3.0] * 4, [0.0] * 4]


def test_a_projection_adds_with_signs() -> None:
    output = torch.ones(4, 3)

    projections = [value for index, value in enumerate(sketch(output)) if index % (1 + DIRECTIONS)]

    assert {abs(value) for value in projections} <= {1.0, 3.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_expert_computed_in_its_dtype_matches_the_float64_sketch(dtype: torch.dtype) -> None:
    weights = expert(1, dtype)
    expectation = ProbeExpectation(3, 0, HIDDEN, tuple(sketch(answer(widened(weights)))))

    assert expectation.matches(answer(weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_another_expert_does_not_match(dtype: torch.dtype) -> None:
    want = sketch(answer(widened(expert(1, dtype))))

    assert not matches(sketch(answer(expert(2, dtype))), want, dtype)


@pytest.mark.parametrize("change", [lambda t: t * 1.2, lambda t: -t, lambda t: t.roll(1, 1), lambda t: t[[1, 0, 2, 3]]])
def test_a_changed_answer_does_not_match(change: object) -> None:
    output = answer(expert(1, torch.bfloat16))

    assert not matches(sketch(change(output)), sketch(output), torch.bfloat16)  # type: ignore[operator]


def test_rows_that_were_rounded_to_bytes_may_move_an_answer_by_percents_but_not_to_anothers() -> None:
    output = answer(expert(1, torch.float32))
    expectation = ProbeExpectation(3, 0, HIDDEN, tuple(sketch(output)))
    off = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    moved = output + 0.1 * off * (output.norm(dim=1) / off.norm(dim=1))[:, None]

    assert expectation.matches(moved, rounded_rows=True)
    assert not expectation.matches(moved)
    assert not expectation.matches(answer(expert(2, torch.float32)), rounded_rows=True)
    assert not expectation.matches(output * 1.3, rounded_rows=True)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_never_match(bad: float) -> None:
    numbers = [bad] * SKETCH_LENGTH

    assert not matches(numbers, numbers, torch.float32)


def test_a_sketch_of_another_length_never_matches() -> None:
    assert not matches([1.0], [1.0], torch.float32)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch\.int8"):
        matches([0.0] * SKETCH_LENGTH, [0.0] * SKETCH_LENGTH, torch.int8)
