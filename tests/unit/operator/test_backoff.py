"""A process that keeps crashing."""

import pytest
from moe.operator.planner import Backoff

BACKOFF = Backoff(initial_s=1.0, factor=2.0, limit_s=10.0, steady_s=60.0, looping_after=3)


def test_waits_double_up_to_the_limit():
    assert [BACKOFF.delay_s(crashes) for crashes in range(7)] == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_process_that_crashed_a_million_times_waits_no_longer_than_the_limit():
    assert BACKOFF.delay_s(1_000_000) == 10.0


def test_a_limit_below_the_first_wait_holds_at_once():
    assert Backoff(initial_s=5.0, limit_s=2.0).delay_s(1) == 2.0


def test_the_first_restart_is_soon_since_requests_wait_for_it():
    assert Backoff().delay_s(1) <= 0.5


@pytest.mark.parametrize(("lived_s", "crashes"), [(0.0, 5), (59.9, 5), (60.0, 1), (3600.0, 1)])
def test_a_process_that_lived_long_starts_again_at_the_beginning(lived_s, crashes):
    assert BACKOFF.crashes_in_a_row(4, lived_s) == crashes


def test_a_process_that_crashes_at_once_is_a_loop_from_its_third_time_on():
    crashes, seen = 0, []
    for _ in range(4):
        crashes = BACKOFF.crashes_in_a_row(crashes, 0.2)
        seen.append((BACKOFF.delay_s(crashes), BACKOFF.looping(crashes)))
    assert seen == [(1.0, False), (2.0, False), (4.0, True), (8.0, True)]
