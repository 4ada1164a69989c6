"""Tiles of one shape: a row's bits depend on the row alone, not on its place, its company or how many there are."""

import pytest
import torch
from moe.kernels.ffn import DEFAULT_TILE_ROWS, FfnSpec, ffn
from support.ffn_cases import SIZES, SPECS, rows, weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WIDE = {"demo": (576, 192), "several blocks": (96, 1030)}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("size", [*SIZES.values(), *WIDE.values()], ids=[*SIZES, *WIDE])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_row_has_the_same_bits_alone_and_in_any_place_of_any_batch(spec, size, dtype):
    given, batch = weights(spec, *size, dtype), rows(37, size[0], dtype)
    together = ffn(batch, given, spec, tile_rows=DEFAULT_TILE_ROWS)
    alone = torch.cat([ffn(row[None], given, spec, tile_rows=DEFAULT_TILE_ROWS) for row in batch])
    backwards = ffn(batch.flip(0), given, spec, tile_rows=DEFAULT_TILE_ROWS).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, backwards)


CURVES = {
    "ungated silu": FfnSpec("silu", gated=False, bias=False),
    "ungated gelu_tanh": FfnSpec("gelu_tanh", gated=False, bias=False),
    "clamped_swiglu": SPECS["clamped_swiglu"],
}


@pytest.mark.parametrize("spec", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("inner", [7, 33, 2311])
def test_a_row_has_the_same_bits_in_every_place_of_a_tile(inner, threads, spec):
    # Curves over 16 * 7 elements in one call end in a scalar tail that rounds otherwise; with 3 threads, so does each
    # thread's share of 16 * 2311.
    given, drawn = weights(spec, 13, inner, torch.float32), rows(40, 13, torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tiles = [ffn(row.repeat(16, 1), given, spec, tile_rows=16) for row in drawn]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(tile, tile[:1].expand(16, -1)) for tile in tiles)


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_the_alignment_of_the_rows_does_not_matter(offset):
    given, batch = weights(SPECS["silu"], 13, 7, torch.float32), rows(20, 13, torch.float32)
    moved = torch.empty(20 * 13 + offset)[offset:].view(20, 13).copy_(batch)
    assert torch.equal(ffn(moved, given, SPECS["silu"], tile_rows=16), ffn(batch, given, SPECS["silu"], tile_rows=16))
