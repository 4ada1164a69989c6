"""The slot cache: what it takes, what it cleans, what it keeps."""

import pytest
import torch
from moe.models.backbone import cache as cache_module
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.geometry import AttentionLayer, Geometry, RecurrentLayer, Visibility
from moe.models.backbone.memory import readable
from moe.models.backbone.segments import PackedRows
from moe.models.contract import Segment

PLAIN = AttentionLayer(2, 8, 4, torch.float32, Visibility())
LATENT = AttentionLayer(1, 12, 8, torch.bfloat16, Visibility(), latent=True)
RECURRENT = RecurrentLayer((6, 4), torch.bfloat16, (2, 3, 5), torch.float32)


def make(slots: int = 3, tokens: int = 32) -> SlotCache:
    return SlotCache(Geometry({0: PLAIN, 2: LATENT}, {1: RECURRENT}), slots, tokens)


def test_keys_and_values_take_their_sizes() -> None:
    assert PLAIN.bytes_per_token == 2 * (8 + 4) * 4


def test_latents_are_stored_once() -> None:
    assert LATENT.bytes_per_token == 12 * 2


def test_a_recurrent_layer_takes_the_same_for_any_length() -> None:
    assert RECURRENT.bytes_per_slot == 6 * 4 * 2 + 2 * 3 * 5 * 4


def test_written_keys_lie_at_their_slot_and_position() -> None:
    cache, rows = make(), PackedRows([Segment(2, 5, 1), Segment(0, 0, 2)])
    keys = torch.arange(2 * 3 * 8, dtype=torch.float32).view(2, 3, 8)

    cache.write(0, rows, keys, torch.zeros(2, 3, 4))

    stored = torch.stack((cache.keys[0][2, :, 5], cache.keys[0][0, :, 0], cache.keys[0][0, :, 1]), dim=1)
    assert torch.equal(stored, keys)


def test_latents_are_the_values_of_what_was_written() -> None:
    cache, rows = make(), PackedRows([Segment(1, 0, 1)])
    latent = torch.arange(8, dtype=torch.bfloat16).view(1, 1, 8)

    cache.write(2, rows, latent, torch.full((1, 1, 4), 9, dtype=torch.bfloat16))

    assert torch.equal(cache.values[2][1, :, 0], latent[0])


def dirty(cache: SlotCache, slot: int, tokens: int) -> None:
    rows = PackedRows([Segment(slot, 0, tokens)])
    cache.begin(rows)
    for slab in (cache.keys[0], cache.values[0], cache.keys[2]):
        slab[slot, :, :tokens] = float("nan")
    for state in (cache.convolutions[1], cache.states[1]):
        state[slot] = float("nan")
    cache.commit(rows)


def finite(cache: SlotCache) -> bool:
    parts = (cache.keys, cache.values, cache.convolutions, cache.states)
    return all(bool(tensor.isfinite().all()) for part in parts for tensor in part.values())


def test_a_sequence_begins_in_a_clean_slot() -> None:
    cache = make()
    dirty(cache, slot=1, tokens=20)

    cache.begin(PackedRows([Segment(1, 0, 2)]))

    assert finite(cache)


def test_releasing_cleans_a_slot() -> None:
    cache = make()
    dirty(cache, slot=1, tokens=20)

    cache.release(1)

    assert (finite(cache), cache.lengths) == (True, [0, 0, 0])


def test_a_failed_step_s_tokens_are_cleaned_too() -> None:
    cache = make()
    rows = PackedRows([Segment(0, 0, 20)])
    cache.begin(rows)
    cache.keys[0][0, :, :20] = float("nan")
    cache.spoil(rows)

    cache.begin(PackedRows([Segment(0, 0, 1)]))

    assert finite(cache)


def test_committed_tokens_are_counted() -> None:
    cache = make()

    cache.commit(PackedRows([Segment(0, 0, 7), Segment(2, 4, 1)]))

    assert cache.lengths == [7, 0, 5]


def test_a_failure_leaves_no_length_where_states_are_recurrent() -> None:
    cache = make()

    cache.spoil(PackedRows([Segment(1, 3, 1)]))

    assert cache.lengths == [0, None, 0]


def test_a_failure_keeps_the_length_where_there_is_attention_only() -> None:
    cache = SlotCache(Geometry({0: PLAIN}, {}), 2, 32)
    cache.commit(PackedRows([Segment(1, 0, 3)]))

    cache.spoil(PackedRows([Segment(1, 3, 1)]))

    assert cache.lengths == [0, 3]


def test_what_memory_can_t_hold_is_refused_before_it_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "available_bytes", lambda: 12_000)

    # 3 slots x (32 tokens x 120 bytes + 168 bytes) = 12,024 bytes
    with pytest.raises(MemoryError, match="3 slots of 32 tokens"):
        make()


def test_what_memory_just_holds_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "available_bytes", lambda: 12_024)

    assert make().slots == 3


def test_an_unknown_amount_of_memory_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "available_bytes", lambda: None)

    assert make().slots == 3


@pytest.mark.parametrize(("count", "text"), [(3 * 2**20, "3.00 MiB"), (5 * 2**29, "2.50 GiB")])
def test_sizes_read_well(count: int, text: str) -> None:
    assert readable(count) == text
