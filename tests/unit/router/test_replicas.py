"""The choice among a group's replicas."""

import pytest
from moe.discovery.directory import ExpertReplica
from moe.router.replicas import Suspects, choose_replica

A, B, C = (ExpertReplica(name, "g", (0,), name, ready=True) for name in "abc")


@pytest.mark.parametrize(
    ("replicas", "queued", "avoid", "turn", "chosen"),
    [
        ([], {}, [], 0, None),
        ([A], {"a": 9}, ["a"], 3, A),
        ([A, B, C], {"a": 5, "b": 1, "c": 7}, [], 0, B),
        ([A, B, C], {"a": 5, "b": 1, "c": 7}, ["b"], 0, A),
        ([A, B], {"a": 2, "b": 1}, ["a", "b"], 0, B),
        ([A, B, C], {"a": 0, "b": 1, "c": 0}, [], 0, A),
        ([A, B, C], {"a": 0, "b": 1, "c": 0}, [], 1, C),
        ([A, B, C], {"a": 0, "b": 1, "c": 0}, [], 2, A),
    ],
    ids=["none", "the only one", "least queued", "not the failed one", "all failed", "turn 0", "turn 1", "turn 2"],
)
def test_the_least_busy_replica_that_did_not_just_fail_is_chosen(
    replicas: list[ExpertReplica], queued: dict[str, int], avoid: list[str], turn: int, chosen: ExpertReplica | None
) -> None:
    assert choose_replica(replicas, lambda endpoint: queued[endpoint], avoid, turn) == chosen


def test_a_suspect_is_forgotten_after_a_while() -> None:
    suspects = Suspects(hold_s=2.0)
    suspects.add("a", now=10.0)
    assert [list(suspects.current(now)) for now in (10.0, 11.9, 12.0)] == [["a"], ["a"], []]


def test_a_suspect_that_fails_again_at_once_is_avoided_twice_as_long_up_to_a_bound() -> None:
    suspects = Suspects(hold_s=2.0, longest_s=5.0)
    suspects.add("a", now=0.0)
    suspects.add("a", now=2.5)
    assert [bool(suspects.current(now)) for now in (6.4, 6.6)] == [True, False]
    suspects.add("a", now=7.0)
    assert [bool(suspects.current(now)) for now in (11.9, 12.1)] == [True, False]


def test_a_suspect_that_was_well_for_as_long_as_it_was_avoided_begins_anew() -> None:
    suspects = Suspects(hold_s=2.0, longest_s=30.0)
    suspects.add("a", now=0.0)
    suspects.add("a", now=4.5)
    assert [bool(suspects.current(now)) for now in (6.4, 6.6)] == [True, False]
