import pytest
from moe.cli.supervise.fleet import Command, Fleet
from moe.cli.supervise.lifecycle import Action, Exited, Healthy, Rules, Spawned, State
from moe.cli.supervise.spec import ProcessSpec, Role

RULES = Rules(restart_delay=lambda failures: 1.0, start_timeout_s=100, stable_s=30, drain_timeout_s=5)

SPECS = [
    ProcessSpec("e0", Role.EXPERT, "m", (), "unix:/r/e0", "g0", (0, 1)),
    ProcessSpec("e1", Role.EXPERT, "m", (), "unix:/r/e1", "g1", (2,)),
    ProcessSpec("agg", Role.AGGREGATOR, "m", (), "unix:/r/agg"),
    ProcessSpec("router", Role.ROUTER, "m", (), "unix:/r/router"),
]


@pytest.fixture
def fleet():
    return Fleet(SPECS, RULES, started=0.0, ready_timeout_s=60)


def spawn_all(fleet, now=0.0):
    for pid, command in enumerate(fleet.tick(now).commands, start=100):
        fleet.handle(command.name, Spawned(pid), now)


def bring_up(fleet, now=1.0):
    spawn_all(fleet)
    for name in fleet.processes:
        fleet.handle(name, Healthy(), now)


def test_everything_is_started_at_once(fleet):
    assert fleet.tick(0.0).commands == tuple(Command(spec.name, Action.SPAWN) for spec in SPECS)


def test_it_is_up_when_the_last_process_is_ready(fleet):
    spawn_all(fleet)
    seen = []
    for name in fleet.processes:
        fleet.handle(name, Healthy(), 1.0)
        seen.append(fleet.up)
    assert seen == [False, False, False, True]


def test_it_stays_up_when_a_process_crashes_later(fleet):
    bring_up(fleet)
    fleet.handle("e0", Exited(-9), 2.0)
    assert (fleet.up, fleet.given_up) == (True, None)


def test_a_state_that_changed_is_told_with_before_and_after(fleet):
    spawn_all(fleet)
    (change,) = fleet.handle("e0", Healthy(), 1.0).changes
    assert (change.before.state, change.after.state) == (State.STARTING, State.READY)


def test_a_bad_configuration_ends_the_start(fleet):
    spawn_all(fleet)
    fleet.handle("e1", Exited(2), 1.0)
    assert (fleet.given_up.processes, fleet.given_up.bad_configuration) == (("e1",), True)


def test_five_crashes_before_it_was_ever_ready_end_the_start(fleet):
    spawn_all(fleet)
    for round_ in range(5):
        fleet.handle("e1", Exited(1), 10.0 * round_)
        fleet.tick(10.0 * round_ + 5)
    assert fleet.given_up.reason == "e1 ended 5 times before it was ready (exit code 1)"


def test_four_crashes_do_not(fleet):
    spawn_all(fleet)
    for round_ in range(4):
        fleet.handle("e1", Exited(1), 10.0 * round_)
        fleet.tick(10.0 * round_ + 5)
    assert fleet.given_up is None


def test_a_start_that_takes_too_long_names_who_is_late(fleet):
    spawn_all(fleet)
    fleet.handle("e0", Healthy(), 1.0)
    fleet.tick(61.0)
    assert fleet.given_up.reason == "not ready within 60 s: e1, agg, router"


def test_once_up_crashes_never_end_it(fleet):
    bring_up(fleet)
    for round_ in range(9):
        now = 10.0 * (round_ + 1)
        fleet.handle("e1", Exited(1), now)
        fleet.tick(now + 5)
    assert fleet.given_up is None


def test_the_directory_tells_a_crashed_expert_as_not_ready(fleet):
    bring_up(fleet)
    fleet.handle("e0", Exited(-9), 2.0)
    snapshot = fleet.snapshot("demo", 7)
    assert [(replica.name, replica.ready) for replica in snapshot.experts] == [("e0", False), ("e1", True)]


def test_the_directory_lists_experts_with_their_ids_and_endpoints(fleet):
    replica = fleet.snapshot("demo", 1).experts[0]
    assert (replica.group, replica.experts, replica.endpoint, replica.ready) == ("g0", (0, 1), "unix:/r/e0", False)


def test_the_router_is_not_in_the_directory(fleet):
    snapshot = fleet.snapshot("demo", 1)
    assert [replica.name for replica in (*snapshot.experts, *snapshot.aggregators)] == ["e0", "e1", "agg"]


def test_stop_asks_the_router_first(fleet):
    bring_up(fleet)
    assert fleet.stop(2.0).commands == (Command("router", Action.TERMINATE),)


def test_the_others_go_on_while_the_router_drains(fleet):
    bring_up(fleet)
    fleet.stop(2.0)
    assert fleet.tick(3.0).commands == ()


def test_when_the_router_is_gone_the_rest_is_asked(fleet):
    bring_up(fleet)
    fleet.stop(2.0)
    fleet.handle("router", Exited(0), 3.0)
    assert [command.name for command in fleet.tick(3.1).commands] == ["e0", "e1", "agg"]


def test_a_router_that_does_not_drain_is_killed_and_then_the_rest_is_asked(fleet):
    bring_up(fleet)
    fleet.stop(2.0)
    killed = fleet.tick(7.1).commands
    fleet.handle("router", Exited(-9), 7.2)
    assert (killed, len(fleet.tick(7.3).commands)) == ((Command("router", Action.KILL),), 3)


def test_it_has_ended_when_the_last_process_has(fleet):
    bring_up(fleet)
    fleet.stop(2.0)
    for name in ("router", "e0", "e1", "agg"):
        fleet.handle(name, Exited(0), 3.0)
        fleet.tick(3.1)
    assert fleet.ended


def test_an_expert_that_dies_while_the_router_drains_is_started_again(fleet):
    bring_up(fleet)
    fleet.stop(2.0)
    fleet.handle("e0", Exited(-9), 2.5)
    assert fleet.tick(4.0).commands == (Command("e0", Action.SPAWN),)


def test_once_the_router_is_gone_nothing_is_started_again(fleet):
    bring_up(fleet)
    fleet.stop(2.0)
    fleet.handle("e0", Exited(1), 2.5)
    fleet.handle("router", Exited(0), 3.0)
    assert [command.name for command in fleet.tick(100.0).commands if command.action is Action.SPAWN] == []


def test_stop_now_kills_everything_at_once(fleet):
    bring_up(fleet)
    assert {command.action for command in fleet.stop_now(2.0).commands} == {Action.KILL}
