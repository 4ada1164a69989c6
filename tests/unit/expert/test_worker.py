"""The compute thread over a wire in memory: answers, failures, drain, figures."""

import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from moe.expert.compute import compute
from moe.expert.counters import Counters
from moe.expert.worker import Worker
from moe.runtime.progress import Progress
from moe.wire.ends import Computed
from moe.wire.port import ExpertWire
from support.expert_double import InMemoryExpertWire, work
from support.ffn_cases import rows as draw_rows
from support.tiny_package import HIDDEN

WAIT_S = 10.0


@pytest.fixture
def wire() -> InMemoryExpertWire:
    return InMemoryExpertWire()


@pytest.fixture
def counters() -> Counters:
    return Counters()


def make_worker(wire: ExpertWire, counters: Counters) -> Worker:
    return Worker(wire, counters, lambda error: None, Progress(60))


@pytest.fixture
def worker(wire, group, counters) -> Iterator[Worker]:
    worker = make_worker(wire, counters)
    worker.start(group)
    yield worker
    worker.drain()
    assert worker.join(WAIT_S)


def answer(wire: InMemoryExpertWire) -> str:
    return wire.answers.get(timeout=WAIT_S)


def test_a_batch_is_answered_with_a_partial_for_each_item(wire, worker, group):
    items = (
        work(draw_rows(2, HIDDEN, torch.float32), [(0, 1, 0.5), (1, 2, 0.5)]),
        work(torch.zeros(1, HIDDEN), [(0, 0, 1.0)]),
    )
    wire.put(*items)
    answer(wire)
    partials = wire.finished[0][1]
    assert all(map(torch.equal, partials, compute(items, group).partials))


def test_a_batch_that_fails_is_answered_and_the_next_one_computed(wire, worker):
    wire.put(work(torch.ones(1, HIDDEN), [(0, 99, 1.0)]))
    wire.put(work(torch.ones(1, HIDDEN), [(0, 1, 1.0)]))
    assert [answer(wire), answer(wire)] == ["failed", "finished"]


def test_a_failure_says_which_layer_and_what(wire, worker):
    wire.put(work(torch.ones(1, HIDDEN), [(0, 1, 1.0)], layer=1))
    answer(wire)
    assert wire.failed[0][1] == "computing layer 1 failed: KeyError: 1"


def test_a_failure_that_can_not_be_answered_does_not_end_the_thread(wire, worker):
    wire.fail_raises = True
    wire.put(work(torch.ones(1, HIDDEN), [(0, 99, 1.0)]))
    wire.put(work(torch.ones(1, HIDDEN), [(0, 1, 1.0)]))
    assert [answer(wire), answer(wire)] == ["failed", "finished"]


def test_draining_finishes_what_waits(wire, group, counters):
    worker = make_worker(wire, counters)
    for _ in range(5):
        wire.put(work(torch.ones(1, HIDDEN), [(0, 1, 1.0)]))
    worker.start(group)
    worker.drain()
    assert worker.join(WAIT_S)
    assert len(wire.finished) == 5


def test_draining_has_the_wire_refuse_what_is_new(wire, counters):
    make_worker(wire, counters).drain()
    assert wire.drained


def test_draining_before_the_weights_came_answers_what_waits(wire, counters):
    worker = make_worker(wire, counters)
    wire.put(work(torch.ones(1, HIDDEN), [(0, 1, 1.0)]))
    worker.drain()
    assert wire.failed[0][1] == "the process ends before it was ready; take another replica"


def test_a_broken_wire_ends_the_thread_and_says_so(group, counters):
    deaths: queue.Queue[BaseException] = queue.Queue()
    broken = InMemoryExpertWire()
    broken.next_batch = lambda timeout_s: 1 / 0
    Worker(broken, counters, deaths.put, Progress(60)).start(group)
    assert isinstance(deaths.get(timeout=WAIT_S), ZeroDivisionError)


def test_the_figures_count_rows_slots_and_batches(wire, worker, counters):
    wire.put(work(torch.ones(2, HIDDEN), [(0, 1, 1.0), (1, 1, 1.0), (1, 2, 1.0)]))
    wire.put(work(torch.ones(1, HIDDEN), [(0, 2, 1.0)]))
    assert [answer(wire), answer(wire)] == ["finished", "finished"]
    stats = counters.message(wire.stats(), Computed(), "torch")
    assert (stats.rows, stats.batches, dict(stats.slots_by_expert)) == (3, 2, {1: 2, 2: 2})


def test_the_figures_include_the_queues(wire, counters):
    stats = counters.message(wire.stats(), Computed(), "torch")
    assert (stats.queued_rows, stats.overloaded, stats.expired, stats.invalid) == (0, 2, 3, 4)


def test_a_kernel_that_never_returns_is_told_from_a_worker_without_work(wire, group, counters):
    now, entered, release = [0.0], threading.Event(), threading.Event()
    progress = Progress(60, clock=lambda: now[0])
    hanging = SimpleNamespace(layers={0: lambda *_: (entered.set(), release.wait(), 1 / 0)})
    worker = Worker(wire, counters, lambda error: None, progress)
    worker.start(hanging)
    wire.put(work(torch.ones(1, HIDDEN), [(0, 1, 1.0)]))
    assert entered.wait(WAIT_S)
    progress.stuck()
    now[0] += 61
    assert "has not come round for 61 s" in progress.stuck()

    release.set()
    answer(wire)
    worker.drain()
    assert worker.join(WAIT_S)
    assert progress.stuck() == ""
