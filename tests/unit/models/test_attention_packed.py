"""Packed attention against dense attention written out per row, for every visibility and mix of rows."""

import itertools

import pytest
import torch
from moe.models.backbone.attention import attend_packed, neighbours, plan_attention
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.geometry import AttentionLayer, Geometry, Visibility
from moe.models.backbone.segments import PackedRows, Single
from moe.models.backbone.tiled_attention import attend_tiled, plan_tiles
from moe.models.contract import Segment
from torch import Tensor

VISIBILITIES = [Visibility(), Visibility("window", 5), Visibility("chunk", 8)]
SCALE = 0.3
QUERY_HEADS, HEADS, SIZE = 6, 2, 16

STEPS = {
    "one row alone": [(0, 0, 1)],
    "decoding rows in neighbouring slots": [(0, 3, 1), (1, 11, 1), (2, 20, 1)],
    "decoding rows out of order, with a gap": [(3, 9, 1), (0, 2, 1), (1, 17, 1)],
    "a first chunk": [(1, 0, 13)],
    "a later chunk, across windows": [(1, 13, 9)],
    "chunks and decoding rows mixed": [(2, 0, 4), (0, 19, 1), (3, 6, 11), (1, 0, 1)],
}


def filled_cache(visibility: Visibility) -> SlotCache:
    layer = AttentionLayer(HEADS, SIZE, SIZE, torch.float32, visibility)
    cache = SlotCache(Geometry({0: layer}, {}), slots=4, slot_tokens=32)
    generator = torch.Generator().manual_seed(0)
    for slab in (cache.keys[0], cache.values[0]):
        slab.copy_(torch.randn(slab.shape, generator=generator))
    return cache


def visible(visibility: Visibility, query: int, key: int) -> bool:
    if key > query:
        return False
    if visibility.kind == "window":
        return query - key < visibility.size
    return visibility.kind == "full" or query // visibility.size == key // visibility.size


def by_hand(cache: SlotCache, segments: list[Segment], query: Tensor, visibility: Visibility, sinks: Tensor) -> Tensor:
    """One row, one head, in float64."""
    rows = [(segment.slot, segment.start + place) for segment in segments for place in range(segment.count)]
    result = torch.zeros(len(rows), QUERY_HEADS, SIZE, dtype=torch.float64)
    for (row, (slot, position)), head in itertools.product(enumerate(rows), range(QUERY_HEADS)):
        seen = [key for key in range(position + 1) if visible(visibility, position, key)]
        shared = head // (QUERY_HEADS // HEADS)
        keys, values = (slab[0][slot, shared, seen].double() for slab in (cache.keys, cache.values))
        scores = torch.cat((keys @ query[row, head].double() * SCALE, sinks[head].double().view(1)))
        result[row, head] = torch.softmax(scores, 0)[:-1] @ values
    return result


@pytest.mark.parametrize("tiled", [False, True], ids=["packed", "tiled"])
@pytest.mark.parametrize("visibility", VISIBILITIES, ids=lambda one: one.kind)
@pytest.mark.parametrize("sunk", [False, True], ids=["without sinks", "with sinks"])
@pytest.mark.parametrize("step", STEPS)
def test_rows_attend_as_if_written_out(step: str, sunk: bool, visibility: Visibility, tiled: bool) -> None:
    segments = [Segment(*values) for values in STEPS[step]]
    cache, rows = filled_cache(visibility), PackedRows(segments)
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(rows.count, QUERY_HEADS, SIZE, generator=generator)
    sinks = torch.randn(QUERY_HEADS, generator=generator)

    if tiled:
        plan = plan_tiles(rows, visibility)
        result = attend_tiled(plan, cache, 0, query, scale=SCALE, sinks=sinks if sunk else None)
    else:
        packed = plan_attention(rows, visibility, torch.float32)
        result = attend_packed(packed, cache, 0, query, scale=SCALE, sinks=sinks if sunk else None)

    wanted = by_hand(cache, segments, query, visibility, sinks if sunk else torch.full((QUERY_HEADS,), -torch.inf))
    torch.testing.assert_close(result.double(), wanted, atol=2e-6, rtol=0)


def singles(*pairs: tuple[int, int]) -> list[Single]:
    return [Single(row, slot, position) for row, (slot, position) in enumerate(pairs)]


def slots_of(groups: list[list[Single]]) -> list[list[int]]:
    return [[one.slot for one in group] for group in groups]


def test_neighbouring_slots_of_like_length_share_a_call() -> None:
    assert slots_of(neighbours(singles((2, 90), (0, 100), (1, 110)), Visibility())) == [[0, 1, 2]]


def test_a_gap_between_slots_starts_a_new_call() -> None:
    assert slots_of(neighbours(singles((0, 9), (1, 9), (3, 9)), Visibility())) == [[0, 1], [3]]


def test_a_much_longer_neighbour_gets_a_call_of_its_own() -> None:
    assert slots_of(neighbours(singles((0, 9), (1, 9), (2, 4000), (3, 4010)), Visibility())) == [[0, 1], [2, 3]]


def test_a_window_makes_lengths_alike() -> None:
    # The first keys differ: 0 and 3991 are far apart in the slab, but as many are read.
    assert slots_of(neighbours(singles((0, 4000), (1, 4004)), Visibility("window", 10))) == [[0, 1]]


@pytest.mark.parametrize("visibility", VISIBILITIES, ids=lambda one: one.kind)
def test_first_keys_of_many_positions_are_those_of_each(visibility: Visibility) -> None:
    positions = torch.arange(40)

    assert visibility.firsts(positions).tolist() == [visibility.first(position) for position in range(40)]
