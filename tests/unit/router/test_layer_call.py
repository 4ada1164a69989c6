"""Layer calls under faults: what is sent again and where, when a part is given up, and whose rows it takes.

All of it holds for a call that is handed to the wire in parts, and for one that the wire cuts into parts itself.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from moe.discovery.directory import ExpertReplica, RoutingWishes, Snapshot
from moe.router.call_result import LayerResult
from moe.router.dispatch import plan_parts
from moe.router.fleet import FleetTracker
from moe.router.layer_call import Abandoned, CallSettings, LayerCaller, Routing
from moe.runtime.errors import DeadlineExceeded, MoeError, Unavailable
from moe.wire.port import FailureKind, LayerCall, MissingPolicy
from support.clock import Clock
from support.router_double import SILENT, ListedDirectory, RouterWireDouble, listing
from torch import Tensor

WAIT, RENORMALISE, FAIL = MissingPolicy.WAIT, MissingPolicy.RENORMALISE, MissingPolicy.FAIL
INDEX = torch.tensor([[0, 1], [2, 3], [1, 2]])  # row 0 needs g0, row 1 g1, row 2 both
WEIGHTS = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])
HIDDEN = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
ANSWER = torch.tensor([[1.5, 3.0], [11.25, 15.0], [12.5, 15.0]])  # expert e multiplies by e + 1


def multiply(layer: int, expert: int, rows: Tensor) -> Tensor:
    return rows * (expert + 1)


class Stage:
    """Two groups of two experts, a caller, and a clock that only waiting moves.

    routed: whether the wire is to cut calls into parts.
    """

    routed = False

    def __init__(
        self,
        policy: MissingPolicy = WAIT,
        snapshot: Snapshot | None = None,
        *,
        embedded: bool = False,
        seat: int = 0,
        hedge_after_s: float = 0.5,
    ) -> None:
        self.clock = Clock()
        self.wire = RouterWireDouble(multiply, self.clock, self.clock.pass_s)
        self.directory = ListedDirectory(snapshot or listing([[0, 1], [2, 3]]))
        settings = CallSettings(policy, timeout_s=10.0, embedded=embedded, seat=seat, hedge_after_s=hedge_after_s)
        tracker = FleetTracker(self.directory, 4)
        self.caller = LayerCaller(self.wire, tracker, settings, clock=self.clock, sleep=self.clock.pass_s)

    def run(
        self, abandoned: Callable[[], bool] = lambda: False, meanwhile: Callable[[], None] | None = None
    ) -> LayerResult:
        fleet = self.caller.fleet()
        if self.routed:
            routing = Routing(INDEX, WEIGHTS, 4)
            result = self.caller.run_routed(7, HIDDEN, routing, fleet, abandoned, meanwhile)
            if result is not None:
                return result
        parts = plan_parts(INDEX, WEIGHTS, fleet.part_of_expert, 4)
        return self.caller.run(7, HIDDEN, parts, fleet, abandoned, meanwhile)

    def sent_to(self, part: int) -> list[str]:
        return [endpoint for _, sent, endpoint in self.wire.sent if sent == part]


@pytest.fixture(autouse=True, params=[False, True], ids=["parts", "routed"])
def routed(request: pytest.FixtureRequest) -> Iterator[bool]:
    Stage.routed = request.param
    yield request.param
    Stage.routed = False


def lost(result: LayerResult) -> dict[int, MoeError]:
    """Row -> error."""
    return {row: t.error for t in result.troubles if t.error is not None for row in t.rows.tolist()}


def test_a_call_sends_every_part_once_and_gives_the_sum() -> None:
    stage = Stage()
    result = stage.run()
    assert (result.rows.tolist(), result.troubles, stage.wire.sent) == (
        ANSWER.tolist(),
        (),
        [(7, 0, "g0-0"), (7, 1, "g1-0")],
    )


def test_a_wished_policy_acts_from_the_next_call_on() -> None:
    stage = Stage(WAIT)
    stage.run()
    stage.directory.put(listing([[0, 1]]).experts, listing([]).aggregators)

    stage.directory.wish(RoutingWishes(missing_policy="fail"))

    assert set(lost(stage.run())) == {1, 2}


def test_a_wished_timeout_acts_from_the_next_call_on() -> None:
    stage = Stage(WAIT)
    stage.directory.put(listing([[0, 1]]).experts, listing([]).aggregators)
    before = stage.clock()

    stage.directory.wish(RoutingWishes(layer_timeout_s=3.0))
    stage.run()

    assert 3.0 <= stage.clock() - before < 6.0


def test_a_withdrawn_wish_leaves_what_the_router_was_started_with() -> None:
    stage = Stage(WAIT)
    stage.directory.wish(RoutingWishes(missing_policy="fail", layer_timeout_s=3.0, hedge_after_s=1.0))
    stage.run()

    stage.directory.wish(RoutingWishes())
    stage.run()

    assert (stage.caller.settings.policy, stage.caller.settings.timeout_s) == (WAIT, 10.0)


def test_a_wish_that_nobody_understands_changes_nothing() -> None:
    stage = Stage(FAIL)
    stage.directory.wish(RoutingWishes(missing_policy="pray"))
    stage.run()
    assert stage.caller.settings.policy is FAIL


def test_the_wire_is_told_of_all_endpoints_ready_or_not() -> None:
    stage = Stage()
    replicas = listing([[0, 1], [2, 3]]).experts
    stage.directory.put([replicas[0], ExpertReplica("g1-0", "g1", (2, 3), "g1-0", ready=False)], [])
    stage.caller.fleet()
    assert (stage.wire.experts, stage.wire.aggregators) == (("g0-0", "g1-0"), ())


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.STREAM_LOST,
        FailureKind.UNREACHABLE,
        FailureKind.DRAINING,
        FailureKind.FAILED,
        FailureKind.OVERLOADED,
    ],
)
@pytest.mark.parametrize("policy", [WAIT, RENORMALISE, FAIL])
def test_a_failed_part_goes_to_the_other_replica_at_once(kind: FailureKind, policy: MissingPolicy) -> None:
    stage = Stage(policy, listing([[0, 1], [2, 3]], replicas=2))
    stage.wire.queued = {"g0-0": 0, "g0-1": 3, "g1-0": 0, "g1-1": 3}
    stage.wire.faults["g0-0"] = [kind]
    start = stage.clock()
    result = stage.run()
    assert (result.rows.tolist(), result.troubles) == (ANSWER.tolist(), ())
    assert (stage.sent_to(0), stage.clock() - start) == (["g0-0", "g0-1"], 0.0)
    assert stage.caller.counters.retried_parts == 1


def test_the_next_call_avoids_the_replica_that_failed() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], replicas=2))
    stage.wire.queued = {"g0-1": 3}
    stage.wire.faults["g0-0"] = [FailureKind.STREAM_LOST]
    stage.run()
    stage.run()
    assert stage.sent_to(0) == ["g0-0", "g0-1", "g0-1"]


@pytest.mark.parametrize("policy", [WAIT, RENORMALISE, FAIL])
def test_a_refused_dispatch_is_an_error_of_its_rows_at_once_whatever_the_policy(policy: MissingPolicy) -> None:
    stage = Stage(policy)
    stage.wire.faults["g1-0"] = [FailureKind.INVALID] * 3
    start = stage.clock()
    result = stage.run()
    errors = lost(result)
    assert (sorted(errors), type(errors[1]), result.rows[0].tolist()) == ([1, 2], MoeError, ANSWER[0].tolist())
    assert (len(stage.sent_to(1)), stage.clock() - start < 0.1) == (1, True)


def test_a_dispatch_refused_by_one_replica_goes_to_the_other() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], replicas=2))
    stage.wire.faults["g0-0"] = stage.wire.faults["g0-1"] = [FailureKind.INVALID]
    assert (stage.run().rows.tolist(), len(stage.sent_to(0))) == (ANSWER.tolist(), 2)


def test_an_overloaded_replica_is_asked_again_when_it_said() -> None:
    stage = Stage()
    stage.wire.retry_after_s = 0.7
    stage.wire.faults["g0-0"] = [FailureKind.OVERLOADED]
    start = stage.clock()
    result = stage.run()
    assert (result.troubles, pytest.approx(stage.clock() - start)) == ((), 0.7)


def test_wait_stalls_until_the_replica_is_back_and_gives_the_same_rows() -> None:
    stage = Stage(WAIT)
    ready, gone = listing([[0, 1], [2, 3]]), listing([[0, 1]])
    stage.wire.faults["g1-0"] = [FailureKind.STREAM_LOST]
    start = stage.clock()

    def restart(call: LayerCall) -> None:
        waited = stage.clock() - start
        if stage.wire.sent and waited < 3:
            stage.directory.put(gone.experts, gone.aggregators)
        elif waited >= 3:
            stage.directory.put(ready.experts, ready.aggregators)

    stage.wire.before_exchange = restart
    result = stage.run()
    assert (result.rows.tolist(), result.troubles, stage.clock() - start < 3.5) == (ANSWER.tolist(), (), True)


def test_wait_ends_at_the_deadline_and_takes_only_the_rows_of_the_missing_group() -> None:
    stage = Stage(WAIT)
    stage.wire.faults["g1-0"] = [SILENT]
    result = stage.run()
    errors = lost(result)
    assert (sorted(errors), result.rows[0].tolist()) == ([1, 2], ANSWER[0].tolist())
    assert isinstance(errors[1], DeadlineExceeded)
    assert "layer 7: group g1" in errors[1].message


def test_wait_names_a_group_that_has_no_replica_at_all() -> None:
    stage = Stage(WAIT, listing([[0, 1]]))
    errors = lost(stage.run())
    assert isinstance(errors[1], Unavailable)
    assert "(no group)" in errors[1].message


def test_fail_gives_up_a_group_without_replicas_at_once() -> None:
    stage = Stage(FAIL, listing([[0, 1]]))
    start = stage.clock()
    errors = lost(stage.run())
    assert (sorted(errors), isinstance(errors[2], Unavailable), stage.clock() - start) == ([1, 2], True, 0.0)


def test_fail_gives_up_after_the_only_replica_failed_twice() -> None:
    stage = Stage(FAIL)
    stage.wire.faults["g1-0"] = [FailureKind.STREAM_LOST, FailureKind.UNREACHABLE, FailureKind.UNREACHABLE]
    errors = lost(stage.run())
    assert (sorted(errors), len(stage.sent_to(1))) == ([1, 2], 2)
    assert "scripted unreachable" in errors[1].message


def test_renormalise_degrades_the_rows_that_others_touch_and_loses_the_rest() -> None:
    stage = Stage(RENORMALISE, listing([[0, 1]]))
    result = stage.run()
    degraded = [t.rows.tolist() for t in result.troubles if t.error is None]
    assert (degraded, sorted(lost(result))) == ([[1, 2]], [1])


def test_a_lost_aggregator_is_replaced_by_another_under_a_new_call_id() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], aggregators=2))
    stage.wire.lost_aggregators["a0"] = 1
    start = stage.clock()
    result = stage.run()
    assert (result.rows.tolist(), len(set(stage.wire.calls)), stage.clock() - start) == (ANSWER.tolist(), 2, 0.0)
    assert stage.caller.counters.redone_calls == 1


def test_routers_share_out_the_aggregators() -> None:
    stages = [Stage(snapshot=listing([[0, 1], [2, 3]], aggregators=2), seat=seat) for seat in (0, 1, 2)]
    for stage in stages:
        stage.run()
    assert [stage.wire.used for stage in stages] == [["a0"], ["a1"], ["a0"]]


def test_the_only_aggregator_is_tried_again_with_growing_delays() -> None:
    stage = Stage()
    stage.wire.lost_aggregators["a0"] = 4
    start = stage.clock()
    result = stage.run()
    assert (result.troubles, pytest.approx(stage.clock() - start)) == ((), 0.04 + 0.08 + 0.16 + 0.32)


def test_without_an_aggregator_every_row_is_lost_at_the_deadline() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], aggregators=0))
    start = stage.clock()
    errors = lost(stage.run())
    assert (sorted(errors), isinstance(errors[0], Unavailable)) == ([0, 1, 2], True)
    assert 10.0 <= stage.clock() - start < 10.1


def test_the_combiner_inside_needs_no_aggregator() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], aggregators=0), embedded=True)
    assert stage.run().rows.tolist() == ANSWER.tolist()


def test_a_rejected_plan_is_an_internal_error_of_its_rows() -> None:
    stage = Stage()
    stage.wire.rejection = "tokens: got 0"
    errors = lost(stage.run())
    assert (sorted(errors), type(errors[0])) == ([0, 1, 2], MoeError)


def test_a_call_nobody_waits_for_is_abandoned() -> None:
    stage = Stage()
    stage.wire.faults["g0-0"] = [SILENT]
    with pytest.raises(Abandoned):
        stage.run(abandoned=lambda: stage.clock() > 1001)
    assert stage.wire.abandoned == stage.wire.calls


def test_call_ids_share_a_random_upper_half_and_differ_below() -> None:
    stage, other = Stage(), Stage()
    for each in (stage, stage, other):
        each.run()
    uppers = {call >> 32 for call in stage.wire.calls}
    assert (len(uppers), len(set(stage.wire.calls)), uppers.isdisjoint(c >> 32 for c in other.wire.calls)) == (
        1,
        2,
        True,
    )


@pytest.mark.parametrize("policy", [WAIT, RENORMALISE, FAIL])
def test_numbers_that_no_replica_can_give_end_their_rows_long_before_the_deadline(policy: MissingPolicy) -> None:
    stage = Stage(policy)
    stage.wire.faults["g1-0"] = [FailureKind.REFUSED] * 20
    start = stage.clock()
    result = stage.run()
    assert (set(lost(result)) <= {1, 2}, bool(result.troubles), stage.clock() - start < 1) == (True, True, True)
    assert result.rows[0].tolist() == ANSWER[0].tolist()


def test_numbers_refused_once_are_computed_again() -> None:
    stage = Stage(WAIT)
    stage.wire.faults["g1-0"] = [FailureKind.REFUSED] * 2
    assert stage.run().rows.tolist() == ANSWER.tolist()


def test_a_silent_part_goes_to_the_other_replica_too_and_the_first_answer_wins() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], replicas=2))
    stage.wire.queued = {"g0-1": 3, "g1-1": 3}
    stage.wire.faults["g0-0"] = [SILENT]
    start = stage.clock()
    result = stage.run()
    assert (result.rows.tolist(), result.troubles, stage.sent_to(0)) == (ANSWER.tolist(), (), ["g0-0", "g0-1"])
    assert 0.5 <= stage.clock() - start < 0.8


def test_a_hedge_is_counted_and_is_no_retry() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], replicas=2))
    stage.wire.faults["g0-0"] = stage.wire.faults["g0-1"] = [SILENT]
    stage.run()
    counters = stage.caller.counters
    assert (counters.hedged_parts, counters.retried_parts, len(stage.sent_to(0))) == (2, 0, 2)


def test_the_next_call_avoids_the_replica_that_was_silent() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], replicas=2))
    stage.wire.queued = {"g0-1": 3}
    stage.wire.faults["g0-0"] = [SILENT]
    stage.run()
    stage.run()
    assert stage.sent_to(0) == ["g0-0", "g0-1", "g0-1"]


def test_with_one_replica_nothing_is_sent_twice() -> None:
    stage = Stage()
    stage.wire.faults["g0-0"] = [SILENT]
    stage.run()
    assert (stage.sent_to(0), stage.caller.counters.hedged_parts) == (["g0-0"], 0)


def test_a_part_is_hedged_once_however_long_both_are_silent() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], replicas=3))
    for name in ("g0-0", "g0-1", "g0-2"):
        stage.wire.faults[name] = [SILENT] * 9
    stage.run()
    assert len(stage.sent_to(0)) == 2


def test_the_time_while_experts_work_is_filled_once_all_parts_are_sent() -> None:
    stage = Stage()
    seen: list[int] = []
    result = stage.run(meanwhile=lambda: seen.append(len(stage.wire.sent)))
    assert (seen, result.rows.tolist()) == ([2], ANSWER.tolist())


def test_an_error_in_the_time_that_is_filled_abandons_the_call() -> None:
    stage = Stage()

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stage.run(meanwhile=fail)
    assert stage.wire.abandoned == stage.wire.calls


def test_a_part_that_fails_while_the_time_is_filled_is_sent_again() -> None:
    stage = Stage()
    stage.wire.faults["g1-0"] = [FailureKind.STREAM_LOST]
    assert stage.run(meanwhile=lambda: None).rows.tolist() == ANSWER.tolist()
    assert stage.sent_to(1) == ["g1-0", "g1-0"]


def test_the_wire_cuts_a_call_where_every_group_and_an_aggregator_is_there(routed: bool) -> None:
    whole, short, headless = Stage(), Stage(FAIL, listing([[0, 1]])), Stage(snapshot=listing([[0, 1], [2, 3]], 1, 0))
    for stage in (whole, short, headless):
        stage.run()
    assert (whole.wire.routed, short.wire.routed, headless.wire.routed) == (int(routed), 0, 0)


def test_a_row_that_is_not_finite_is_for_the_caller_to_deal_with(routed: bool) -> None:
    stage = Stage()
    bad = HIDDEN.clone()
    bad[1, 0] = float("inf")
    assert stage.caller.run_routed(7, bad, Routing(INDEX, WEIGHTS, 4), stage.caller.fleet(), lambda: False) is None


def test_replicas_equally_busy_take_turns() -> None:
    stage = Stage(snapshot=listing([[0, 1], [2, 3]], replicas=2))
    for _ in range(4):
        stage.run()
    assert sorted(stage.sent_to(0)) == ["g0-0", "g0-0", "g0-1", "g0-1"]
