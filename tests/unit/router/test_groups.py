"""The table of expert groups, read from the directory."""

import pytest
from moe.discovery.directory import AggregatorReplica, ExpertReplica, Snapshot
from moe.router.groups import UNSERVED, Fleet, FleetError, empty_fleet, updated


def replica(name: str, group: str, *experts: int, ready: bool = True) -> ExpertReplica:
    return ExpertReplica(name, group, experts, f"unix:/{name}", ready)


def fleet_of(*replicas: ExpertReplica, before: Fleet | None = None, experts: int = 4) -> Fleet:
    return updated(before or empty_fleet(experts), Snapshot(1, "m", replicas))


def test_groups_are_numbered_by_their_lowest_expert() -> None:
    fleet = fleet_of(replica("b-0", "b", 1, 2), replica("a-0", "z", 0, 3))
    assert ([group.name for group in fleet.groups], fleet.part_of_expert.tolist()) == (["z", "b"], [0, 1, 1, 0])


def test_only_ready_replicas_are_sent_to() -> None:
    fleet = fleet_of(replica("a-0", "a", 0, 1, 2, 3), replica("a-1", "a", 0, 1, 2, 3, ready=False))
    assert [r.name for r in fleet.ready("a")] == ["a-0"]


def test_a_group_that_vanished_is_remembered_without_replicas() -> None:
    before = fleet_of(replica("a-0", "a", 0, 1), replica("b-0", "b", 2, 3))
    after = fleet_of(replica("a-0", "a", 0, 1), before=before)
    assert ([g.name for g in after.groups], after.unready_groups()) == (["a", "b"], ["b"])


def test_a_new_cut_replaces_remembered_groups_it_overlaps() -> None:
    before = fleet_of(replica("a-0", "a", 0, 1), replica("b-0", "b", 2, 3))
    after = fleet_of(replica("c-0", "c", 1, 2), replica("d-0", "d", 0, 3), before=before)
    assert [g.name for g in after.groups] == ["d", "c"]


def test_experts_that_nobody_lists_have_a_group_of_their_own() -> None:
    fleet = fleet_of(replica("a-0", "a", 0, 2))
    assert [(g.name, g.experts) for g in fleet.groups] == [("a", (0, 2)), (UNSERVED, (1, 3))]


def test_only_ready_aggregators_are_listed() -> None:
    aggregators = (AggregatorReplica("x", "unix:/x", ready=False), AggregatorReplica("y", "unix:/y", ready=True))
    assert [a.name for a in updated(empty_fleet(1), Snapshot(1, "m", (), aggregators)).aggregators] == ["y"]


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ((replica("a-0", "a", 0, 1), replica("b-0", "b", 1, 2)), "expert 1 is in group a and in group b"),
        ((replica("a-0", "a", 0, 1), replica("a-1", "a", 0, 2)), "a-0 holds experts"),
        ((replica("a-0", "a", 4),), "the model's experts are 0 to 3"),
    ],
)
def test_a_directory_that_contradicts_itself_is_refused(replicas: tuple[ExpertReplica, ...], message: str) -> None:
    with pytest.raises(FleetError, match=message):
        fleet_of(*replicas)
