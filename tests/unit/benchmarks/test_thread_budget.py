"""The table of thread divisions: medians of turns beside the best of their number of groups, and what moe up takes."""

import pytest

from benchmarks import thread_budget
from benchmarks.thread_budget import Division, Taken, divisions, rows


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_budget, "available_cores", lambda: 2)


def test_each_division_is_told_beside_the_best_of_its_number_of_groups() -> None:
    taken = [
        Taken(Division(8, 1, 1), 50.0, 40.0),
        Taken(Division(8, 2, 1), 100.0, 30.0),
        Taken(Division(8, 2, 1), 80.0, 50.0),
        Taken(Division(1, 2, 2), 200.0, 10.0),
    ]
    assert rows(taken) == [
        ["1 groups, router 2, expert 2", "yes", "200", "100%", "10.0", "100%", "1"],
        ["8 groups, router 1, expert 1", "", "50.0", "56%", "40.0", "100%", "1"],
        ["8 groups, router 2, expert 1", "yes", "90.0", "100%", "40.0", "100%", "2"],
    ]


def test_a_piece_of_the_divisions_can_be_asked_for() -> None:
    assert divisions([1, 8], [1, 2], ["2/1"]) == [Division(1, 2, 1), Division(8, 2, 1)]
    assert len(divisions([1, 8], [1, 2], [])) == 8
