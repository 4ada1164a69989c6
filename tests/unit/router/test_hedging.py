"""When silence is too long."""

import pytest
from moe.router.hedging import LEAST_S, P99_TIMES, UNKNOWN_S, Patience


def patience_after(durations: list[float], after_s: float = 0.0) -> Patience:
    patience = Patience(after_s)
    for seconds in durations:
        patience.note(["g"], seconds)
    return patience


def test_a_group_without_history_gets_more_time() -> None:
    assert patience_after([0.001] * 10).seconds("g") == UNKNOWN_S


def test_a_fast_group_still_gets_some_hundred_milliseconds() -> None:
    assert patience_after([0.001] * 100).seconds("g") == LEAST_S


def test_a_slow_group_gets_a_multiple_of_its_99th_percentile() -> None:
    durations = [0.1] * 197 + [0.5, 0.5, 9.0]
    assert patience_after(durations).seconds("g") == pytest.approx(P99_TIMES * 0.5)


def test_groups_do_not_share_their_history() -> None:
    assert patience_after([0.001] * 100).seconds("other") == UNKNOWN_S


def test_a_time_that_is_set_stands_whatever_calls_take() -> None:
    assert patience_after([5.0] * 100, after_s=0.7).seconds("g") == 0.7
