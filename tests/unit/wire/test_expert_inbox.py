"""The expert's queue between two threads."""

import threading
import time

import torch
from moe.wire.expert_inbox import ExpertInbox
from moe.wire.port import ExpertLimits, WorkItem

NONE = torch.zeros(0)


def inbox(expired: list[WorkItem] | None = None, max_queued_rows: int = 100) -> ExpertInbox:
    limits = ExpertLimits(4, torch.float32, {}, max_queued_rows=max_queued_rows)
    return ExpertInbox(limits, (expired if expired is not None else []).extend)


def item(part: int = 0, deadline: float | None = None) -> WorkItem:
    return WorkItem(1, 0, part, "agg", torch.zeros(4, 4), NONE, NONE, NONE, torch.float32, deadline)


def test_no_batch_comes_after_the_timeout() -> None:
    before = time.monotonic()
    assert inbox().next_batch(0.05) is None
    assert time.monotonic() - before >= 0.05


def test_an_item_wakes_the_one_who_waits() -> None:
    box = inbox()
    threading.Timer(0.05, lambda: box.offer(item())).start()
    assert box.next_batch(20.0) is not None


def test_a_drained_inbox_hands_out_what_waits_and_then_nothing_at_once() -> None:
    box = inbox()
    box.offer(item())
    box.drain()
    assert box.next_batch(20.0) is not None
    before = time.monotonic()
    assert box.next_batch(20.0) is None
    assert time.monotonic() - before < 10.0


def test_draining_wakes_the_one_who_waits() -> None:
    box = inbox()
    threading.Timer(0.05, box.drain).start()
    before = time.monotonic()
    assert box.next_batch(20.0) is None
    assert time.monotonic() - before < 10.0


def test_expired_items_are_told_and_waiting_goes_on() -> None:
    expired: list[WorkItem] = []
    box = inbox(expired)
    box.offer(item(deadline=time.monotonic() - 1.0))
    assert box.next_batch(0.05) is None
    assert len(expired) == 1


def test_expired_items_make_room_in_a_full_queue() -> None:
    box = inbox(max_queued_rows=4)
    box.offer(item(0, deadline=time.monotonic() - 1.0))
    assert box.offer(item(1)) is None
