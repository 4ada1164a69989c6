import pytest
from moe.api.control.v1 import control_pb2 as pb
from moe.cli import figures
from moe.cli.status_table import expert_ranges
from moe.cli.supervise.samples import Sample
from moe.cli.supervise.state_file import ProcessRecord


def process(name, role="expert"):
    return ProcessRecord(name, role, "ready", 1, 0, f"unix:/r/{name}", name, (0,))


def expert(at, **fields):
    return Sample(at, pb.StatsResponse(resident_bytes=100, expert=pb.ExpertStats(**fields)))


def router(at, **fields):
    return Sample(at, pb.StatsResponse(resident_bytes=1000, router=pb.RouterStats(**fields)))


def only_row(first, last):
    (row,) = figures.rows([process("e0")], {"e0": (first, last)})
    return row


def test_rows_a_second_are_the_growth_of_the_counter_over_the_time():
    assert only_row(expert(10, rows=100), expert(12, rows=160)).rows_per_s == 30


def test_busy_is_the_part_of_the_time_spent_computing():
    assert only_row(expert(10, busy_s=1.0), expert(14, busy_s=2.0)).busy == 0.25


def test_busy_never_exceeds_all_of_the_time():
    assert only_row(expert(10, busy_s=0.0), expert(10.5, busy_s=1.0)).busy == 1.0


def test_the_queue_is_the_newest_one():
    assert only_row(expert(10, queued_rows=9), expert(11, queued_rows=4)).queue == 4


def test_a_wait_is_the_mean_of_the_dispatches_that_were_taken_in_between():
    first, last = expert(10, dispatches=4, queue_wait_s=9.0), expert(11, dispatches=14, queue_wait_s=9.5)
    assert only_row(first, last).wait_s == 0.05
    assert only_row(last, last).wait_s is None


def test_the_kernels_of_all_experts_are_named_once():
    samples = {"e0": expert(1, kernel="torch"), "e1": expert(1, kernel="native"), "e2": expert(1, kernel="native")}
    assert figures.summary({name: (each, each) for name, each in samples.items()}).kernels == ("native", "torch")


def test_one_sample_alone_has_no_rate():
    sample = expert(10, rows=100, busy_s=3)
    assert (only_row(sample, sample).rows_per_s, only_row(sample, sample).busy) == (0, 0)


def test_a_counter_that_fell_is_a_rate_of_zero():
    assert only_row(expert(10, rows=100), expert(11, rows=5)).rows_per_s == 0


def test_a_share_is_of_the_slots_of_all_experts_since_the_start():
    a, b = expert(1, slots_by_expert={0: 20, 1: 10}), expert(1, slots_by_expert={2: 10})
    rows = figures.rows([process("a"), process("b")], {"a": (a, a), "b": (b, b)})
    assert [row.share for row in rows] == [0.75, 0.25]


def test_shares_are_zero_before_the_first_slot():
    assert only_row(expert(1), expert(2)).share == 0


def test_a_process_that_does_not_answer_has_a_row_without_figures():
    (row,) = figures.rows([process("e0")], {})
    assert (row.rows_per_s, row.share, row.queue, row.busy) == (None, None, None, None)


def test_an_aggregator_shows_calls_a_second_and_open_ones():
    first = Sample(1, pb.StatsResponse(aggregator=pb.AggregatorStats(combined=10)))
    last = Sample(3, pb.StatsResponse(aggregator=pb.AggregatorStats(combined=50, open=2)))
    (row,) = figures.rows([process("agg", "aggregator")], {"agg": (first, last)})
    assert (row.rows_per_s, row.queue) == (20, 2)


def test_a_router_with_an_aggregator_inside_is_still_a_router():
    sample = router(1, waiting=3)
    sample.stats.aggregator.combined = 10
    (row,) = figures.rows([process("router", "router")], {"router": (sample, sample)})
    assert (row.queue, row.rows_per_s) == (3, None)


def test_the_summary_adds_up_routers_and_memory():
    samples = {
        "r0": (router(0, generated_tokens=10), router(2, generated_tokens=30, running=1, waiting=2)),
        "r1": (router(0, generated_tokens=0), router(2, generated_tokens=10, running=3)),
        "e0": (expert(0), expert(2)),
    }
    assert figures.summary(samples) == figures.Summary(tokens_per_s=15, running=4, waiting=2, resident_bytes=2100)


@pytest.mark.parametrize(
    ("experts", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 2, 3, 7), "0,2-3,7"), ((0, 1), "0-1")]
)
def test_neighbouring_expert_ids_are_joined(experts, text):
    assert expert_ranges(experts) == text


def test_a_share_goes_on_when_an_expert_restarts():
    fresh, other = expert(1, slots_by_expert={0: 1}), expert(1, slots_by_expert={2: 500})
    both = [process("a"), ProcessRecord("b", "expert", "ready", 1, 0, "unix:/r/b", "b", (2,)), process("r", "router")]
    routing = router(1, slots_by_expert={0: 300, 2: 100})
    rows = figures.rows(both, {"a": (fresh, fresh), "b": (other, other), "r": (routing, routing)})
    assert [row.share for row in rows] == [0.75, 0.25, None]


def test_replicas_divide_their_group_s_share_by_what_each_computed():
    names = ("a-0", "a-1", "b-0")
    group = {"a-0": ("a", (0,)), "a-1": ("a", (0,)), "b-0": ("b", (1,))}
    processes = [ProcessRecord(name, "expert", "ready", 1, 0, f"unix:/{name}", *group[name]) for name in names]
    slots = {"a-0": {0: 30}, "a-1": {0: 10}, "b-0": {1: 7}}
    samples = {name: (expert(1, slots_by_expert=slots[name]),) * 2 for name in names}
    routing = router(1, slots_by_expert={0: 80, 1: 20})
    rows = figures.rows(
        [*processes, ProcessRecord("r", "router", "ready", 1, 0, "unix:/r")], samples | {"r": (routing,) * 2}
    )
    assert [row.share for row in rows[:3]] == pytest.approx([0.6, 0.2, 0.2])
