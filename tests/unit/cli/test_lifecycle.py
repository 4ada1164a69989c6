from moe.cli.supervise.lifecycle import (
    Action,
    Exited,
    Healthy,
    Process,
    Rules,
    Spawned,
    State,
    Stop,
    StopNow,
    Tick,
    Unhealthy,
    advance,
    describe_exit,
)

RULES = Rules(
    restart_delay=lambda failures: float(10 * failures),
    start_timeout_s=60,
    hang_timeout_s=20,
    stable_s=30,
    drain_timeout_s=5,
)


class Life:
    """A process and everything it asked for, so that a test reads as what happened when."""

    def __init__(self):
        self.process = Process("expert")
        self.asked = []

    def at(self, now, event=Tick()):  # noqa: B008 - frozen
        self.process, actions = advance(self.process, event, now, RULES)
        self.asked += actions
        return self

    @property
    def state(self):
        return self.process.state


def started(pid=7):
    return Life().at(0).at(0, Spawned(pid))


def ready():
    return started().at(1, Healthy())


def test_a_new_process_is_spawned_at_once():
    assert Life().at(0).asked == [Action.SPAWN]


def test_a_process_is_spawned_once_however_often_time_passes():
    assert Life().at(0).at(1).at(2).asked == [Action.SPAWN]


def test_it_is_ready_when_its_health_check_says_so():
    assert ready().state is State.READY


def test_failed_checks_while_starting_leave_it_starting():
    assert started().at(1, Unhealthy("connection refused")).state is State.STARTING


def test_a_crash_waits_for_the_back_off_of_the_first_failure():
    life = ready().at(2, Exited(1))
    assert (life.state, life.process.due) == (State.WAITING, 12)


def test_a_crashed_process_is_spawned_again_when_due_and_not_before():
    life = ready().at(2, Exited(1)).at(11.9)
    early = list(life.asked)
    assert (early, life.at(12).asked) == ([Action.SPAWN], [Action.SPAWN, Action.SPAWN])


def test_a_second_crash_in_a_row_waits_longer():
    life = ready().at(2, Exited(1)).at(12).at(12, Spawned(8)).at(13, Exited(1))
    assert life.process.due == 13 + 20


def test_a_crash_after_a_stable_time_counts_as_the_first():
    life = ready().at(2, Exited(1)).at(12).at(12, Spawned(8)).at(13, Healthy()).at(13 + 31, Exited(1))
    assert life.process.failures == 1


def test_earlier_failures_are_forgotten_once_it_is_stable():
    life = ready().at(2, Exited(1)).at(12).at(12, Spawned(8)).at(13, Healthy()).at(13 + 31)
    assert life.process.failures == 0


def test_restarts_count_every_start_but_the_first():
    life = ready().at(2, Exited(1)).at(12).at(12, Spawned(8))
    assert life.process.restarts == 1


def test_an_exit_without_error_that_nobody_asked_for_is_restarted_too():
    assert ready().at(2, Exited(0)).at(12).asked == [Action.SPAWN, Action.SPAWN]


def test_a_bad_configuration_is_not_tried_again():
    life = started().at(1, Exited(2)).at(1000)
    assert (life.state, life.asked) == (State.FAILED, [Action.SPAWN])


def test_a_configuration_that_has_worked_before_is_tried_again():
    assert ready().at(2, Exited(2)).at(12).asked == [Action.SPAWN, Action.SPAWN]


def test_a_process_that_never_gets_ready_is_killed_once():
    life = started().at(61).at(62)
    assert life.asked == [Action.SPAWN, Action.KILL]


def test_the_reason_of_a_kill_outlives_the_exit_it_causes():
    life = started().at(61).at(62, Exited(-9))
    assert life.process.reason == "not ready within 60 s"


def test_a_late_good_health_check_does_not_revive_a_killed_process():
    assert started().at(61).at(61, Healthy()).state is State.STARTING


def test_a_process_that_stops_answering_is_unready():
    assert ready().at(2, Unhealthy("deadline")).state is State.UNREADY


def test_it_is_ready_again_when_it_answers_again():
    assert ready().at(2, Unhealthy("deadline")).at(5, Healthy()).state is State.READY


def test_a_process_that_hangs_is_killed():
    life = ready().at(2, Unhealthy("deadline")).at(12, Unhealthy("deadline")).at(23)
    assert life.asked == [Action.SPAWN, Action.KILL]


def test_stop_asks_a_running_process_to_drain():
    assert ready().at(2, Stop()).asked == [Action.SPAWN, Action.TERMINATE]


def test_a_drained_process_is_stopped_and_stays_so():
    life = ready().at(2, Stop()).at(3, Exited(0)).at(1000)
    assert (life.state, life.asked.count(Action.SPAWN)) == (State.STOPPED, 1)


def test_a_process_that_does_not_drain_in_time_is_killed_once():
    life = ready().at(2, Stop()).at(7).at(7.1).at(8)
    assert life.asked == [Action.SPAWN, Action.TERMINATE, Action.KILL]


def test_a_process_in_back_off_stops_without_being_started():
    life = ready().at(2, Exited(1)).at(3, Stop()).at(1000)
    assert (life.state, life.asked) == (State.STOPPED, [Action.SPAWN])


def test_stop_before_the_fork_server_answered_terminates_as_soon_as_the_pid_is_known():
    life = Life().at(0).at(0, Stop())
    before = list(life.asked)
    assert (before, life.at(1, Spawned(7)).asked) == ([Action.SPAWN], [Action.SPAWN, Action.TERMINATE])


def test_stop_twice_asks_once():
    assert ready().at(2, Stop()).at(3, Stop()).asked.count(Action.TERMINATE) == 1


def test_stop_now_kills_without_draining():
    assert ready().at(2, StopNow()).asked == [Action.SPAWN, Action.KILL]


def test_stop_now_kills_a_process_that_is_draining():
    assert ready().at(2, Stop()).at(3, StopNow()).asked[-1] is Action.KILL


def test_stop_now_leaves_a_failed_process_failed():
    assert started().at(1, Exited(2)).at(2, StopNow()).state is State.FAILED


def test_exits_are_described_in_words():
    assert [describe_exit(1), describe_exit(-9), describe_exit(-200)] == [
        "exit code 1",
        "killed by SIGKILL",
        "killed by signal 200",
    ]
