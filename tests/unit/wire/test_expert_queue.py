"""An expert's queue: bounded in rows, one layer a batch, the longest waiting layer first, expired work dropped."""

import torch
from moe.wire.expert_queue import ExpertQueue
from moe.wire.port import Batch, ExpertLimits, WorkItem

NONE = torch.zeros(0)


def queue(max_queued_rows: int = 100, max_batch_rows: int = 10) -> ExpertQueue:
    return ExpertQueue(
        ExpertLimits(4, torch.float32, {}, max_queued_rows=max_queued_rows, max_batch_rows=max_batch_rows)
    )


def item(part: int, layer: int = 0, rows: int = 4, deadline: float | None = None) -> WorkItem:
    return WorkItem(1, layer, part, "agg", torch.zeros(rows, 4), NONE, NONE, NONE, torch.float32, deadline)


def parts(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [each.part for each in batch.items]


def test_rows_of_one_layer_are_joined_in_the_order_they_came() -> None:
    waiting = queue()
    for part in (3, 1):
        waiting.offer(item(part), 0.0)
    assert parts(waiting.take(0.0)[0]) == [3, 1]


def test_layers_are_not_joined_and_the_longest_waiting_comes_first() -> None:
    waiting = queue()
    for part, layer in ((0, 7), (1, 2), (2, 7)):
        waiting.offer(item(part, layer), 0.0)
    assert [parts(waiting.take(0.0)[0]) for _ in range(2)] == [[0, 2], [1]]


def test_what_is_left_of_a_layer_keeps_its_place() -> None:
    waiting = queue(max_batch_rows=8)
    for part, layer in ((0, 7), (1, 7), (2, 7), (3, 2)):
        waiting.offer(item(part, layer), 0.0)
    assert [parts(waiting.take(0.0)[0]) for _ in range(3)] == [[0, 1], [2], [3]]


def test_an_item_larger_than_a_batch_goes_alone() -> None:
    waiting = queue(max_batch_rows=8)
    for part, rows in ((0, 20), (1, 4)):
        waiting.offer(item(part, rows=rows), 0.0)
    assert [parts(waiting.take(0.0)[0]) for _ in range(2)] == [[0], [1]]


def test_nothing_waits_in_an_empty_queue() -> None:
    assert queue().take(0.0) == (None, [])


def test_a_full_queue_turns_away_and_says_when_to_come_again() -> None:
    waiting = queue(max_queued_rows=6)
    assert waiting.offer(item(0), 0.0) is None
    hint = waiting.offer(item(1), 0.0)
    assert hint is not None
    assert hint > 0


def test_the_hint_is_the_time_for_half_of_the_queue() -> None:
    waiting = queue(max_queued_rows=6)
    waiting.measured(rows=100, seconds=10.0)
    waiting.offer(item(0, rows=4), 0.0)
    assert waiting.offer(item(1), 0.0) == 4 / 2 / 10


def test_an_item_larger_than_the_queue_is_taken_when_nothing_waits() -> None:
    assert queue(max_queued_rows=6).offer(item(0, rows=50), 0.0) is None


def test_expired_items_are_handed_back_and_not_computed() -> None:
    waiting = queue()
    waiting.offer(item(0, deadline=5.0), 0.0)
    waiting.offer(item(1, deadline=50.0), 0.0)
    batch, expired = waiting.take(10.0)
    assert (parts(batch), [each.part for each in expired]) == ([1], [0])


def test_a_layer_of_expired_items_makes_way_for_the_next() -> None:
    waiting = queue()
    waiting.offer(item(0, layer=0, deadline=5.0), 0.0)
    waiting.offer(item(1, layer=1), 0.0)
    assert parts(waiting.take(10.0)[0]) == [1]


def test_removed_items_free_their_rows() -> None:
    waiting = queue()
    for part in (0, 1):
        waiting.offer(item(part), 0.0)
    waiting.remove(lambda each: each.part == 0)
    assert (waiting.queued_rows, parts(waiting.take(0.0)[0])) == (4, [1])


def test_figures_count_what_was_turned_away() -> None:
    waiting = queue(max_queued_rows=4)
    waiting.offer(item(0, deadline=1.0), 0.0)
    waiting.offer(item(1), 0.0)
    waiting.count_invalid()
    waiting.drop_expired(2.0)
    stats = waiting.stats()
    assert (stats.queued_rows, stats.overloaded, stats.expired, stats.invalid) == (0, 1, 1, 1)


def test_what_was_taken_adds_up_how_long_it_had_waited() -> None:
    waiting = queue()
    for part, came, deadline in ((0, 1.0, None), (1, 2.0, None), (2, 2.5, 3.0)):
        waiting.offer(item(part, deadline=deadline), came)
    assert parts(waiting.take(4.0)[0]) == [0, 1]
    assert (waiting.stats().dispatches, waiting.stats().waited_s) == (2, 5.0)


def test_the_rate_is_of_the_time_spent_computing() -> None:
    waiting = queue()
    assert waiting.stats().rows_per_s == 0
    waiting.measured(rows=100, seconds=10.0)
    assert waiting.stats().rows_per_s == 10
