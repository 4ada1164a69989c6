"""The engine over a tiny model and an in-memory wire: exactness in company, faults that stay with whom they touch."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from moe.discovery.directory import RoutingWishes
from moe.router.domain import Degradation, Ending, Finish, Generation, Piece, SamplingParameters, Scored, Scoring
from moe.router.engine import Engine, EngineSettings
from moe.router.fleet import FleetTracker
from moe.router.layer_call import CallSettings, LayerCaller
from moe.router.scheduler import ScheduleLimits
from moe.runtime.errors import DeadlineExceeded, MoeError, Overloaded, Unavailable
from moe.wire.port import FailureKind, MissingPolicy
from support.fake_backbone import (
    END,
    EXPLODES,
    LAYERS,
    NOT_A_NUMBER,
    FakeBackbone,
    multiply,
    reference_greedy,
    reference_logits,
)
from support.router_double import SILENT, ListedDirectory, RouterWireDouble, listing

PATIENCE_S = 20.0
SCHEDULE = ScheduleLimits(slots=2, kv_tokens=128, max_waiting=8, prefill_tokens=3, score_tokens=2)


class Reader:
    """An outlet that a test reads. capacity: items that may wait unread."""

    def __init__(self, capacity: int = 1000) -> None:
        self._items: queue.Queue[Piece | Ending | Scored | MoeError] = queue.Queue()
        self.capacity = capacity
        self.received: list[Piece | Ending | Scored | MoeError] = []

    @property
    def full(self) -> bool:
        return self._items.qsize() >= self.capacity

    def put(self, item: Piece | Ending | Scored) -> None:
        self._items.put(item)

    def fail(self, error: MoeError) -> None:
        self._items.put(error)

    def next(self) -> Piece | Ending | Scored | MoeError:
        self.received.append(self._items.get(timeout=PATIENCE_S))
        return self.received[-1]

    def end(self) -> Ending | Scored | MoeError:
        while isinstance(item := self.next(), Piece):
            pass
        return item

    def tokens(self) -> list[int]:
        end = self.end()
        assert isinstance(end, Ending), end
        return [score.token for piece in self.received if isinstance(piece, Piece) for score in piece.tokens]


class Bench:
    """An engine with two groups of two experts."""

    def __init__(
        self,
        policy: MissingPolicy = MissingPolicy.WAIT,
        schedule: ScheduleLimits = SCHEDULE,
        *,
        stall_s: float = 60.0,
        timeout_s: float = 30.0,
    ) -> None:
        self.backbone = FakeBackbone()
        self.backbone.allocate(schedule.slots, 64)
        self.wire = RouterWireDouble(multiply, time.monotonic, lambda s: time.sleep(min(s, 0.01)))
        self.directory = ListedDirectory(listing([[0, 1], [2, 3]]))
        caller = LayerCaller(self.wire, FleetTracker(self.directory, 4), CallSettings(policy, timeout_s))
        self.crashes: list[BaseException] = []
        settings = EngineSettings(schedule, stall_s)
        self.engine = Engine(self.backbone, caller, settings, on_crash=self.crashes.append)
        self.engine.start()

    def ask(
        self, prompt: Sequence[int], max_tokens: int = 8, reader: Reader | None = None, **settings: object
    ) -> Reader:
        reader = reader or Reader()
        request = Generation(tuple(prompt), SamplingParameters(), max_tokens, stop_ids=frozenset({END}))
        self.engine.submit(replace(request, **settings), reader)
        return reader


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(*args: object, **kwargs: object) -> Bench:
        made.append(Bench(*args, **kwargs))
        return made[-1]

    yield build
    for bench in made:
        bench.engine.stop("the test is over")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.002)


PROMPTS = [[2, 3, 4, 5, 6, 7, 8], [9], [10, 11], [12, 13, 14, 15], [3, 3, 3, 3, 3], [20, 2, 29]]


def test_every_request_of_a_crowd_gets_the_tokens_of_one_alone(make: Callable[..., Bench]) -> None:
    bench = make()
    readers = [bench.ask(prompt, max_tokens=12) for prompt in PROMPTS]
    assert [r.tokens() for r in readers] == [reference_greedy(prompt, 12) for prompt in PROMPTS]


def test_sampled_tokens_depend_on_the_seed_and_not_on_the_company(make: Callable[..., Bench]) -> None:
    bench = make()
    sampling = SamplingParameters(temperature=1.5, top_p=0.95, seed=77)
    alone = bench.ask(PROMPTS[0], sampling=sampling).tokens()
    crowd = [bench.ask(prompt, sampling=replace(sampling, seed=i)) for i, prompt in enumerate(PROMPTS)]
    again = bench.ask(PROMPTS[0], sampling=sampling)
    assert (again.tokens(), crowd[0].tokens() == alone) == (alone, False)


def test_an_answer_ends_at_the_limit_with_its_usage(make: Callable[..., Bench]) -> None:
    reader = make().ask([2, 3, 4], max_tokens=5, sampling=SamplingParameters(seed=9), stop_ids=frozenset())
    end = reader.end()
    assert isinstance(end, Ending)
    facts = (end.finish, end.stop_match, end.prompt_tokens, end.generated_tokens, end.seed)
    assert facts == (Finish.LENGTH, "", 3, 5, 9)


def test_an_answer_ends_after_a_stop_id(make: Callable[..., Bench]) -> None:
    second = reference_greedy([2, 3, 4], 2)[1]
    end = make().ask([2, 3, 4], stop_ids=frozenset({second})).end()
    assert isinstance(end, Ending)
    assert (end.finish, end.stop_match, end.generated_tokens) == (Finish.STOP, str(second), 2)


def test_the_slots_of_every_expert_are_counted(make: Callable[..., Bench]) -> None:
    bench = make()
    end = bench.ask([4, 8, 12], max_tokens=1).end()  # all three tokens go to experts 0 and 1 in both layers
    assert isinstance(end, Ending)
    assert (end.slots_by_expert, bench.engine.slots_by_expert()) == ({0: 3 * LAYERS, 1: 3 * LAYERS},) * 2


def test_logprobs_are_those_of_the_model_even_under_penalties(make: Callable[..., Bench]) -> None:
    sampling = SamplingParameters(repetition_penalty=50.0)
    reader = make().ask([2, 3], max_tokens=1, sampling=sampling, logprobs=2)
    score = reader.next().tokens[0]
    expected = reference_logits([2, 3])[-1].log_softmax(-1)
    best = expected.topk(2)
    assert score.logprob == pytest.approx(float(expected[score.token]), abs=1e-5)
    assert [token for token, _ in score.top] == best.indices.tolist()


def test_a_score_has_the_logprob_of_every_token_but_the_first(make: Callable[..., Bench]) -> None:
    bench, reader, text = make(), Reader(), (2, 3, 4, 5, 6, 7, 8)
    bench.engine.submit(Scoring(text, top=1), reader)
    scored = reader.end()
    expected = reference_logits(text).log_softmax(-1)
    assert isinstance(scored, Scored)
    assert [s.token for s in scored.tokens] == list(text[1:])
    assert [s.logprob for s in scored.tokens] == pytest.approx(
        [float(expected[i, token]) for i, token in enumerate(text[1:])], abs=1e-5
    )
    assert max(len(step.logit_rows) for step in bench.backbone.steps) == SCHEDULE.score_tokens


def test_a_cancelled_request_frees_its_slot_for_the_next(make: Callable[..., Bench]) -> None:
    bench = make(schedule=replace(SCHEDULE, slots=1))
    hog = Reader()
    key = bench.engine.submit(Generation((2, 3), SamplingParameters(), 60), hog)
    hog.next()
    second = bench.ask([9], max_tokens=3)
    bench.engine.cancel(key)
    assert (second.tokens(), bench.backbone.released[0]) == (reference_greedy([9], 3), 0)


def test_a_waiting_request_that_is_cancelled_never_runs(make: Callable[..., Bench]) -> None:
    bench = make(schedule=replace(SCHEDULE, slots=1))
    first = bench.ask([2, 3], max_tokens=20, stop_ids=frozenset())
    bench.engine.cancel(bench.engine.submit(Generation((19, 19), SamplingParameters(), 5), Reader()))
    first.end()
    until(lambda: bench.engine.load()[:2] == (0, 0))
    assert all(19 not in step.token_ids.tolist() for step in bench.backbone.steps[-1:])


def test_an_exception_in_a_step_ends_its_requests_and_the_loop_lives(make: Callable[..., Bench]) -> None:
    bench = make()
    error = bench.ask([EXPLODES]).end()
    assert isinstance(error, MoeError)
    assert ("token 30 explodes" in error.message, bench.ask([9]).tokens()) == (True, reference_greedy([9], 8))


def test_a_sequence_that_is_not_finite_does_not_touch_the_others(make: Callable[..., Bench]) -> None:
    bench = make()
    bad, good = bench.ask([NOT_A_NUMBER, 4]), bench.ask([2, 5, 6])
    error = bad.end()
    assert isinstance(error, MoeError)
    assert ("not finite" in error.message, good.tokens()) == (True, reference_greedy([2, 5, 6], 8))


def test_a_missing_group_ends_the_requests_that_need_it_and_no_others(make: Callable[..., Bench]) -> None:
    bench = make(MissingPolicy.FAIL)
    bench.directory.put(listing([[0, 1]]).experts, listing([], aggregators=1).aggregators)
    needs, free = bench.ask([2], max_tokens=1), bench.ask([4], max_tokens=1)  # experts 2, 3 and experts 0, 1
    error = needs.end()
    assert isinstance(error, Unavailable)
    assert ("layer 0" in error.message, free.tokens()) == (True, reference_greedy([4], 1))


def test_a_lost_request_costs_the_step_one_wait_and_not_one_a_layer(make: Callable[..., Bench]) -> None:
    bench = make(timeout_s=0.3)
    bench.wire.faults["g1-0"] = [SILENT] * 10
    needs, free = bench.ask([2], max_tokens=1), bench.ask([4], max_tokens=1)
    error = needs.end()
    assert isinstance(error, DeadlineExceeded)
    free.end()
    assert [sent for sent in bench.wire.sent if sent[1] == 1] == [(0, 1, "g1-0")]


def test_a_degradation_is_told_to_the_request_it_touched(make: Callable[..., Bench]) -> None:
    bench = make(MissingPolicy.RENORMALISE)
    bench.wire.faults["g1-0"] = [FailureKind.STREAM_LOST] * 2
    end = bench.ask([1], max_tokens=1).end()  # experts 1 and 2: g0 stands in for g1 in the first layer
    assert isinstance(end, Ending)
    assert [(d.kind, d.layer_calls) for d in end.degradations] == [("renormalised", 1)]
    assert isinstance(end.degradations[0], Degradation)


def test_a_stalled_call_ends_when_nobody_waits_for_it(make: Callable[..., Bench]) -> None:
    bench = make(timeout_s=300.0)
    bench.wire.faults["g0-0"] = [SILENT] * 10
    key = bench.engine.submit(Generation((4,), SamplingParameters(), 5), Reader())
    until(lambda: bool(bench.wire.sent))
    bench.engine.cancel(key)
    until(lambda: bench.engine.load()[0] == 0)
    assert bench.wire.abandoned == bench.wire.calls


def test_a_request_nobody_reads_pauses_and_goes_on_where_it_was(make: Callable[..., Bench]) -> None:
    bench = make()
    slow = bench.ask([2, 3], max_tokens=20, reader=Reader(capacity=3), stop_ids=frozenset())
    until(lambda: slow.full)
    other = bench.ask([9], max_tokens=20, stop_ids=frozenset()).tokens()
    unread = slow._items.qsize()
    bench.engine.wake()
    tokens = slow.tokens()
    assert (unread, len(other), len(tokens)) == (3, 20, 20)


def test_a_request_that_is_never_read_is_ended_by_name(make: Callable[..., Bench]) -> None:
    bench = make(stall_s=0.05)
    reader = bench.ask([2, 3], max_tokens=20, reader=Reader(capacity=3), stop_ids=frozenset())
    until(lambda: bench.engine.tally.finished["DEADLINE_EXCEEDED"] == 1)
    error = reader.end()
    assert isinstance(error, DeadlineExceeded)
    assert "--stall-timeout-s" in error.message


def test_a_full_queue_refuses(make: Callable[..., Bench]) -> None:
    bench = make(schedule=replace(SCHEDULE, slots=1, max_waiting=1), timeout_s=300.0)
    bench.wire.faults["g0-0"] = [SILENT] * 10
    bench.ask([4])
    until(lambda: bool(bench.wire.sent))
    bench.ask([4])
    with pytest.raises(Overloaded):
        bench.ask([4])


def test_stopping_ends_every_request_and_refuses_new_ones(make: Callable[..., Bench]) -> None:
    bench = make(timeout_s=300.0)
    bench.wire.faults["g0-0"] = [SILENT] * 10
    reader = bench.ask([4])
    until(lambda: bool(bench.wire.sent))
    bench.engine.stop("router-0 is going")
    error = reader.end()
    assert isinstance(error, Unavailable)
    with pytest.raises(Unavailable, match="router-0 is going"):
        bench.ask([4])


def test_a_fault_in_the_loop_itself_ends_every_request_and_is_told(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.wire.set_endpoints = None  # the loop tells the wire of a new directory, which now raises
    bench.directory.put((), ())
    until(lambda: bool(bench.crashes))
    with pytest.raises(Unavailable, match="engine has failed"):
        bench.ask([4])
    assert isinstance(bench.crashes[0], TypeError)


def test_the_figures_add_up(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.ask([2, 3, 4], max_tokens=5, stop_ids=frozenset()).end()
    bench.engine.submit(Scoring((2, 3, 4, 5)), scorer := Reader())
    scorer.end()
    tally = bench.engine.tally
    assert (tally.prompt_tokens, tally.generated_tokens, dict(tally.finished)) == (3 + 3, 5, {"LENGTH": 1, "SCORED": 1})


@pytest.mark.parametrize("chunk", [1, 2, 64])
def test_tokens_do_not_depend_on_the_chunks_of_a_prompt(make: Callable[..., Bench], chunk: int) -> None:
    bench = make(schedule=replace(SCHEDULE, prefill_tokens=chunk))
    assert bench.ask(PROMPTS[0]).tokens() == reference_greedy(PROMPTS[0], 8)


def test_a_step_that_fails_in_company_does_not_harm_the_one_after(make: Callable[..., Bench]) -> None:
    bench = make()
    crowd = [bench.ask([EXPLODES]), bench.ask([2, 3]), bench.ask([5])]
    for reader in crowd:
        reader.end()
    assert bench.ask([9]).tokens() == reference_greedy([9], 8)


def test_a_score_without_all_its_experts_is_refused(make: Callable[..., Bench]) -> None:
    bench, reader = make(MissingPolicy.RENORMALISE), Reader()
    bench.wire.faults["g1-0"] = [FailureKind.STREAM_LOST] * 2
    bench.engine.submit(Scoring((1, 2), top=0), reader)
    error = reader.end()
    assert isinstance(error, Unavailable)
    assert "a score has to be exact" in error.message


def scored(bench: Bench, text: tuple[int, ...]) -> list[float]:
    reader = Reader()
    bench.engine.submit(Scoring(text), reader)
    found = reader.end()
    assert isinstance(found, Scored), found
    return [score.logprob for score in found.tokens]


def reference_scores(text: tuple[int, ...], topk: int = 0) -> list[float]:
    expected = reference_logits(text, topk).log_softmax(-1)
    return [float(expected[i, token]) for i, token in enumerate(text[1:])]


@pytest.mark.parametrize("topk", [1, 3])
def test_another_topk_that_is_wished_acts_on_the_next_request(make: Callable[..., Bench], topk: int) -> None:
    bench, text = make(), (9, 2, 3)
    own = scored(bench, text)

    bench.directory.wish(RoutingWishes(topk=topk))

    assert own == pytest.approx(reference_scores(text), abs=1e-5)
    assert scored(bench, text) == pytest.approx(reference_scores(text, topk), abs=1e-5)
    assert own != pytest.approx(reference_scores(text, topk), abs=1e-3)


def test_a_topk_that_the_model_can_not_have_is_not_heeded(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench, text = make(), (9, 2, 3)
    bench.directory.wish(RoutingWishes(topk=9))

    assert scored(bench, text) == pytest.approx(reference_scores(text), abs=1e-5)
    assert "wishes are not heeded" in caplog.text
    assert "top-k is 9; want 1 to 4" in caplog.text
