"""Where the parts of the next call go: one replica for each group, the same object for as long as nothing changes."""

from moe.discovery.directory import Snapshot
from moe.router.groups import Fleet, empty_fleet, updated
from moe.router.places import PlaceFinder
from support.router_double import listing


def fleet(snapshot: Snapshot) -> Fleet:
    return updated(empty_fleet(4), snapshot)


def test_each_expert_has_its_part_and_each_part_its_endpoint() -> None:
    places = PlaceFinder().find(fleet(listing([[0, 3], [1, 2]])), lambda endpoint: 0, (), 0)
    assert places is not None
    assert (places.part_of_expert, places.endpoints) == ((0, 1, 1, 0), ("g0-0", "g1-0"))


def test_a_group_without_a_ready_replica_leaves_no_places() -> None:
    assert PlaceFinder().find(fleet(listing([[0, 3]])), lambda endpoint: 0, (), 0) is None


def test_the_least_busy_replica_that_is_not_avoided_is_taken() -> None:
    replicated = fleet(listing([[0, 1, 2, 3]], replicas=3))
    queued = {"g0-0": 5, "g0-1": 1, "g0-2": 3}
    finder = PlaceFinder()
    found = [finder.find(replicated, lambda endpoint: queued[endpoint], avoid, 0) for avoid in ((), ("g0-1",))]
    assert [places.endpoints for places in found if places] == [("g0-1",), ("g0-2",)]


def test_the_same_places_are_the_same_object_and_another_fleet_has_its_own() -> None:
    finder, one, replicated = PlaceFinder(), fleet(listing([[0, 1], [2, 3]])), fleet(listing([[0, 1, 2, 3]], 2))
    first = finder.find(one, lambda endpoint: 0, (), 0)
    assert finder.find(one, lambda endpoint: 0, (), 1) is first
    both = [finder.find(replicated, lambda endpoint: 0, (), turn) for turn in (0, 2)]
    assert both[0] is both[1] is not first
