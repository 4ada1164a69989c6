"""Stories of the scheduler: admission, packing, fairness, bounds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.router.scheduler import ScheduleLimits, Scheduler, Work
from moe.runtime.errors import Overloaded

LIMITS = ScheduleLimits(slots=2, kv_tokens=100, max_waiting=3, prefill_tokens=8, score_tokens=4)


def step(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    """Does what is planned; one token is drawn for every sequence that is through with what it knows."""
    works = scheduler.plan()
    for work in works:
        scheduler.advance(work, drawn=int(work.last))
    return [(work.key, work.start, work.count) for work in works]


def test_a_prompt_goes_in_chunks_and_then_decodes_row_by_row() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(1, tokens=10, need=20)
    assert [step(scheduler) for _ in range(4)] == [[(1, 0, 8)], [(1, 8, 2)], [(1, 10, 1)], [(1, 11, 1)]]


def test_a_long_prompt_does_not_starve_one_that_decodes() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(1, tokens=1, need=20)
    step(scheduler)
    scheduler.submit(2, tokens=30, need=40)
    assert [step(scheduler) for _ in range(2)] == [[(1, 1, 1), (2, 0, 8)], [(1, 2, 1), (2, 8, 8)]]


def test_prompts_share_the_budget_of_a_step_in_order_of_arrival() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(1, tokens=5, need=20)
    scheduler.submit(2, tokens=9, need=20)
    assert [step(scheduler) for _ in range(2)] == [[(1, 0, 5), (2, 0, 3)], [(1, 5, 1), (2, 3, 6)]]


def test_the_first_in_the_queue_is_not_overtaken_by_one_that_would_fit() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(1, tokens=2, need=60)
    scheduler.submit(2, tokens=2, need=60)
    scheduler.submit(3, tokens=2, need=10)
    step(scheduler)
    assert (scheduler.running, scheduler.waiting, scheduler.kv_tokens_used) == (1, 2, 60)


def test_a_freed_slot_goes_to_the_next_in_the_queue() -> None:
    scheduler = Scheduler(LIMITS)
    for key in (1, 2, 3):
        scheduler.submit(key, tokens=2, need=10)
    step(scheduler)
    slot = scheduler.remove(1)
    assert [(work.key, work.slot) for work in scheduler.plan() if work.key == 3] == [(3, slot)]


def test_a_waiting_sequence_that_is_removed_held_no_slot() -> None:
    scheduler = Scheduler(replace(LIMITS, slots=1))
    scheduler.submit(1, tokens=2, need=10)
    scheduler.submit(2, tokens=2, need=10)
    step(scheduler)
    assert (scheduler.remove(2), scheduler.waiting, scheduler.remove(99)) == (None, 0, None)


def test_a_full_queue_says_when_to_try_again() -> None:
    scheduler = Scheduler(replace(LIMITS, slots=1))
    for key in range(4):
        scheduler.submit(key, tokens=2, need=12)
        step(scheduler)
    with pytest.raises(Overloaded, match="3 requests are waiting") as caught:
        scheduler.submit(5, tokens=2, need=12, step_s=0.5)
    assert caught.value.retry_after_s == 0.5 * (12 - 5)  # it holds 2 + 1 + 1 + 1 tokens of the 12 it may need


def test_without_a_queue_free_slots_are_still_given() -> None:
    scheduler = Scheduler(replace(LIMITS, max_waiting=0))
    scheduler.submit(1, tokens=2, need=10)
    scheduler.submit(2, tokens=2, need=10)
    with pytest.raises(Overloaded):
        scheduler.submit(3, tokens=2, need=10)
    assert [work.key for work in scheduler.plan()] == [1, 2]


def test_a_paused_sequence_keeps_its_slot_and_goes_on_where_it_was() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(1, tokens=3, need=10)
    step(scheduler)
    scheduler.pause(1, True)
    idle = step(scheduler)
    scheduler.pause(1, False)
    assert (idle, step(scheduler)) == ([], [(1, 3, 1)])


def test_a_scored_sequence_has_a_budget_of_its_own() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(1, tokens=9, need=9, scored=True)
    scheduler.submit(2, tokens=9, need=12)
    first = scheduler.plan()
    assert [(work.key, work.count) for work in first] == [(1, 4), (2, 8)]


def test_rows_that_decode_come_first_by_slot() -> None:
    scheduler = Scheduler(replace(LIMITS, slots=3))
    for key in (1, 2, 3):
        scheduler.submit(key, tokens=1, need=10)
    step(scheduler)
    scheduler.remove(1)
    scheduler.submit(4, tokens=5, need=10)
    assert [(work.key, work.slot) for work in scheduler.plan()] == [(2, 1), (3, 2), (4, 0)]


class _Story:
    """Random submissions and removals; watches that the bounds hold and everybody gets through."""

    def __init__(self, limits: ScheduleLimits) -> None:
        self.limits, self.scheduler = limits, Scheduler(limits)
        self.needs: dict[int, int] = {}
        self.held: dict[int, int] = {}

    def run(self, jobs: list[tuple[int, int]]) -> list[int]:
        """jobs: (prompt, output) tokens. Returns the keys in order of their first step."""
        started: list[int] = []
        pending = list(enumerate(jobs))
        while pending or self.needs:
            while pending and self.scheduler.waiting < self.limits.max_waiting:
                key, (prompt, output) = pending.pop(0)
                self.scheduler.submit(key, prompt, prompt + output - 1)
                self.needs[key] = prompt + output - 1
            works = self.scheduler.plan()
            assert works
            started += sorted(work.key for work in works if work.start == 0)
            self._do(works)
        return started

    def _do(self, works: list[Work]) -> None:
        assert len({work.slot for work in works}) == len(works)
        assert sum(work.count for work in works if work.count > 1) <= self.limits.prefill_tokens
        for work in works:
            self.scheduler.advance(work, drawn=int(work.last))
            self.held[work.key] = work.start + work.count
            if self.held[work.key] == self.needs[work.key]:
                self.scheduler.remove(work.key)
                del self.held[work.key], self.needs[work.key]
        assert sum(self.held.values()) <= self.scheduler.kv_tokens_used <= self.limits.kv_tokens


@given(jobs=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), max_size=12), slots=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_everybody_gets_through_in_order_and_within_the_bounds(jobs: list[tuple[int, int]], slots: int) -> None:
    story = _Story(replace(LIMITS, slots=slots))
    assert story.run(jobs) == list(range(len(jobs)))
