"""Deterministic mode: a sequence's logits, to the bit, whatever shares its batch and however it is chunked."""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from moe.models.backbone import TransformersBackbone, UnsupportedBackboneError, load_backbone
from moe.models.backbone.fixed_shapes import FixedShapes
from moe.models.backbone.tiles import in_vectors, padded_rows, tiled_linear
from support.families import FAMILIES, load_reference, write_checkpoint
from support.local_experts import LocalExperts
from support.packed_loop import generate, random_prompts
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)
PROMPT_LENGTH = 37
OTHERS = (3, 7, 12, 20, 1, 9, 25)
TOKENS = 3

Bits = Callable[[str, torch.dtype], Tensor]
Stage = tuple[TransformersBackbone, LocalExperts]


@pytest.fixture(scope="module")
def stage_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, torch.dtype], Stage]:
    @cache
    def load(family: str, dtype: torch.dtype) -> Stage:
        directory = write_checkpoint(family, tmp_path_factory.mktemp("checkpoint"), dtype=dtype)
        backbone = load_backbone(directory, deterministic=True)
        backbone.allocate(8, 64)
        return backbone, LocalExperts(load_reference(directory), rowwise=True)

    return load


@pytest.fixture(scope="module")
def alone(stage_of: Callable[[str, torch.dtype], Stage]) -> Bits:
    """The logits of the sequence by itself, its prompt in one chunk."""

    @cache
    def compute(family: str, dtype: torch.dtype) -> Tensor:
        return logits(stage_of(family, dtype), (), chunk=64)

    return compute


def logits(stage: Stage, others: Sequence[int], *, chunk: int, slot: int = 0) -> Tensor:
    """The logits of one sequence's tokens, generated beside others of these prompt lengths."""
    (prompt,) = random_prompts((PROMPT_LENGTH,))
    free = [number for number in range(8) if number != slot][: len(others)]
    prompts = [*random_prompts(others, seed=1), prompt]
    sequences = generate(*stage, prompts, TOKENS, chunk=chunk, slots=[*free, slot])
    return torch.stack(sequences[-1].logits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_of_five_give_the_bits_of_one_chunk(
    stage_of: Callable[[str, torch.dtype], Stage], alone: Bits, family: str, dtype: torch.dtype
) -> None:
    assert torch.equal(logits(stage_of(family, dtype), (), chunk=5), alone(family, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_seven_others_in_the_batch_change_no_bit(
    stage_of: Callable[[str, torch.dtype], Stage], alone: Bits, family: str, dtype: torch.dtype
) -> None:
    assert torch.equal(logits(stage_of(family, dtype), OTHERS, chunk=64, slot=5), alone(family, dtype))


@pytest.mark.parametrize("family", FAMILIES)
def test_token_by_token_gives_the_bits_of_one_chunk(
    stage_of: Callable[[str, torch.dtype], Stage], alone: Bits, family: str
) -> None:
    assert torch.equal(logits(stage_of(family, torch.float32), (), chunk=1), alone(family, torch.float32))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_library_s(
    stage_of: Callable[[str, torch.dtype], Stage], tmp_path_factory: pytest.TempPathFactory, family: str
) -> None:
    backbone, experts = stage_of(family, torch.float32)
    reference = load_reference(write_checkpoint(family, tmp_path_factory.mktemp("reference")))
    (sequence,) = generate(backbone, experts, random_prompts((PROMPT_LENGTH,)), 1)

    with torch.inference_mode():
        wanted = reference(torch.tensor([sequence.tokens[:-1]])).logits[0, -1]

    # Linear attention runs token by token here and in chunks there, which differs by up to 2e-4 within the library.
    torch.testing.assert_close(sequence.logits[0], wanted, atol=3e-4, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("width", "out"), [(64, 96), (33, 1), (576, 257)])
def test_a_product_s_rows_don_t_depend_on_how_many_there_are(dtype: torch.dtype, width: int, out: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(out, width, generator=generator).to(dtype)
    rows = torch.randn(50, width, generator=generator).to(dtype)

    apart = torch.cat([tiled_linear(part, weight) for part in (rows[:1], rows[1:18], rows[18:])])

    assert torch.equal(tiled_linear(rows, weight), apart)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", [F.silu, torch.sigmoid, torch.exp, F.softplus, torch.cos])
def test_an_element_s_function_doesn_t_depend_on_its_place(
    dtype: torch.dtype, function: Callable[[Tensor], Tensor]
) -> None:
    values = torch.randn(40_001, generator=torch.Generator().manual_seed(0)).to(dtype)

    apart = torch.cat([in_vectors(function, part) for part in (values[:1], values[1:100], values[100:])])

    assert torch.equal(in_vectors(function, values), apart)


@pytest.mark.parametrize(("rows", "padded"), [(0, 16), (1, 16), (16, 16), (17, 32)])
def test_rows_are_padded_to_whole_tiles(rows: int, padded: int) -> None:
    assert padded_rows(rows) == padded


def test_a_tiled_product_is_the_product() -> None:
    rows, weight, bias = torch.randn(3, 7, 20), torch.randn(5, 20), torch.randn(5)

    torch.testing.assert_close(tiled_linear(rows, weight, bias), F.linear(rows, weight, bias))


def test_a_product_of_unknown_shape_is_refused_by_name() -> None:
    with FixedShapes(), pytest.raises(UnsupportedBackboneError, match="deterministic mode: the model calls matmul"):
        torch.matmul(torch.ones(2, 2), torch.ones(2, 2))


def test_a_pause_lets_products_through() -> None:
    mode = FixedShapes()
    with mode, mode.pause():
        result = torch.ones(2, 2) @ torch.ones(2, 2)

    assert result.tolist() == [[2.0, 2.0], [2.0, 2.0]]
