"""Tiles of one shape: a row's bits depend on the row alone, not on its place, its company or how many there are."""

import pytest
import torch
from moe.kernels.ffn import DEFAULT_TILE_ROWS, ffn
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


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_any_place_with_several_threads(threads):
    spec, before = SPECS["ungated_gelu_biased"], torch.get_num_threads()
    given, row = weights(spec, 40, 2311, torch.float32), rows(1, 40, torch.float32)
    torch.set_num_threads(threads)
    try:
        got = ffn(row.repeat(16, 1), given, spec, tile_rows=16)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, got[:1].expand(16, -1))


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_the_alignment_of_the_rows_does_not_matter(offset):
    given, batch = weights(SPECS["silu"], 13, 7, torch.float32), rows(20, 13, torch.float32)
    moved = torch.empty(20 * 13 + offset)[offset:].view(20, 13).copy_(batch)
    assert torch.equal(ffn(moved, given, SPECS["silu"], tile_rows=16), ffn(batch, given, SPECS["silu"], tile_rows=16))
