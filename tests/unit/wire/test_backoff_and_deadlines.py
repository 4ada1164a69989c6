"""Waits double up to a bound, and deadlines cross processes as time left."""

import math

from moe.wire.backoff import Backoff
from moe.wire.deadlines import from_timeout_us, to_timeout_us


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.1, most_s=0.5)
    assert [round(backoff.next_wait_s(0.0), 3) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_a_stream_that_lasted_starts_the_waits_over() -> None:
    backoff = Backoff(first_s=0.1, most_s=0.5)
    for _ in range(4):
        backoff.next_wait_s(0.0)
    assert backoff.next_wait_s(60.0) == 0.1


def test_a_stream_that_ends_at_once_does_not_start_the_waits_over() -> None:
    backoff = Backoff(first_s=0.1, most_s=0.5)
    backoff.next_wait_s(0.0)
    assert backoff.next_wait_s(0.01) == 0.2


def test_time_left_is_in_microseconds() -> None:
    assert to_timeout_us(deadline=12.5, now=10.0) == 2_500_000


def test_a_deadline_that_has_passed_leaves_the_least_time_and_not_none() -> None:
    assert to_timeout_us(deadline=9.0, now=10.0) == 1


def test_an_infinite_deadline_is_none() -> None:
    assert from_timeout_us(to_timeout_us(math.inf, 10.0), 10.0) is None


def test_a_timeout_counts_from_its_arrival() -> None:
    assert from_timeout_us(2_500_000, 100.0) == 102.5
