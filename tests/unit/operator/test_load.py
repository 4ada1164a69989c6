"""How busy experts are: from readings of pods to what a MoEExpert shows, and when it is worth a write."""

import pytest
from moe.operator.kinds import Ref
from moe.operator.load import Reading, in_per_cent, load_of, shares, utilisation
from support.small_world import FACTS, SmallWorld

GROUP = "demo-000"


def running():
    world = SmallWorld(facts=FACTS)
    world.settle()
    world.roll_out()
    return world


def shown(world, group=GROUP):
    """(text, number) that the MoEExpert shows once its status is written."""
    world.say()
    status = world.objects[Ref("MoEExpert", group)]["status"]
    return status["load"], status.get("loadPercent")


def test_nine_seconds_of_thirty_are_three_tenths():
    assert utilisation(Reading(100.0, 4.0), Reading(130.0, 13.0)) == pytest.approx(0.3)


def test_a_call_that_began_before_the_window_makes_it_full_and_no_more():
    assert utilisation(Reading(100.0, 4.0), Reading(130.0, 50.0)) == 1.0


def test_a_process_that_was_started_again_in_between_says_nothing():
    assert utilisation(Reading(100.0, 4.0), Reading(130.0, 3.0)) is None


def test_a_pod_is_known_by_two_readings_unknown_by_one_and_unreadable_by_none():
    before = {"twice": Reading(0.0, 0.0), "lost": Reading(0.0, 0.0), "gone": Reading(0.0, 0.0)}
    now = {"twice": Reading(10.0, 5.0), "once": Reading(10.0, 5.0)}
    assert shares(["twice", "once", "lost"], before, now) == {"twice": 0.5, "lost": None}


@pytest.mark.parametrize(
    ("percent", "before", "after"),
    [
        (42.4, None, 42),
        (42.4, 40, 40),  # within three points
        (43.1, 40, 43),
        (36.9, 40, 37),
        (0.0, 40, 0),
        (0.05, 1, 0),  # come to rest
        (0.3, 1, 1),  # not quite
        (0.3, 0, 0),
        (0.3, None, 0),
        (0.7, 0, 1),  # out of rest, though by less than three points
        (100.0, None, 100),
    ],
)
def test_what_is_shown_moves_only_by_what_matters(percent, before, after):
    assert in_per_cent(percent / 100, before) == after


@pytest.mark.parametrize("before", [None, 0, 1, 2, 50, 97, 100])
def test_what_is_shown_is_right_the_next_time_too(before):
    for tenth in range(1001):
        first = in_per_cent(tenth / 1000, before)
        assert in_per_cent(tenth / 1000, first) == first


def test_a_group_shows_the_mean_of_its_ready_pods():
    world = running()
    for name in ("a", "b"):
        world.add_ready_expert(name, GROUP)
    world.add_ready_expert("starting", GROUP, ready=False)
    world.add_ready_expert("leaving", GROUP)["metadata"]["deletionTimestamp"] = "now"
    world.add_ready_expert("another", "demo-001")
    world.shares = {"a": 0.2, "b": 0.6, "starting": 1.0, "leaving": 1.0, "another": 1.0}
    assert shown(world) == ("40%", 40)


def test_a_replica_that_can_not_be_read_leaves_the_figure_to_the_others():
    world = running()
    for name in ("a", "dead"):
        world.add_ready_expert(name, GROUP)
    world.shares = {"a": 0.2, "dead": None}
    assert shown(world) == ("20%", 20)


def test_a_group_that_can_not_be_read_shows_nothing_and_stays_available():
    world = running()
    world.add_ready_expert("a", GROUP)
    world.shares = {"a": 0.5}
    assert shown(world) == ("50%", 50)
    before = world.objects[Ref("MoEExpert", GROUP)]["status"]["conditions"]
    world.shares = {"a": None}
    assert shown(world) == ("", None)
    assert world.objects[Ref("MoEExpert", GROUP)]["status"]["conditions"] == before


def test_a_group_without_a_ready_pod_shows_nothing():
    world = running()
    pod = world.add_ready_expert("a", GROUP)
    world.shares = {"a": 0.5}
    shown(world)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    assert shown(world) == ("", None)


def test_an_idle_group_shows_0():
    world = running()
    world.add_ready_expert("a", GROUP)
    world.shares = {"a": 0.0}
    assert shown(world) == ("0%", 0)


def test_before_pods_were_read_twice_what_was_written_stays():
    """An operator that starts anew writes nothing, and blanks no column."""
    world = running()
    world.add_ready_expert("a", GROUP)
    world.shares = {"a": 0.5}
    shown(world)
    world.shares = {}
    assert shown(world) == ("50%", 50)


def test_where_older_definitions_would_drop_it_nothing_is_written():
    world = running()
    world.add_ready_expert("a", GROUP)
    world.shares = {"a": 0.5}
    world.outdated = ("moeexperts.moe.dev",)
    assert load_of(world.observed, GROUP, None) is None


def test_a_moeexpert_that_nobody_planned_has_no_load():
    world = running()
    world.add_ready_expert("a", GROUP)
    world.shares = {"a": 0.5}
    world.objects[Ref("MoEExpert", GROUP)]["metadata"]["ownerReferences"] = []
    assert shown(world) == ("", None)
