"""Processes are killed while requests run: none fails, and their tokens are those of an undisturbed run.

All of it under `--deterministic`, so that a batch of another make-up after the fault can't change a rounding.
"""

import os
import signal
import time

import pytest
from support.streams import request

PROMPTS = [[5], [7, 9, 11], list(range(3, 20)), list(range(40, 70)), [99, 98, 97, 96], [12] * 9]
LENGTH = 400  # a step of the tiny model takes a few milliseconds: long enough that no answer ends before its fault
REQUESTS = [request(prompt, LENGTH) for prompt in PROMPTS]


@pytest.fixture(scope="module", params=["process", "sidecar", "embedded"])
def single(request, bring_up, tiny):
    """One replica of each group."""
    return bring_up(tiny, "--groups", "4", "--deterministic", "--aggregator", request.param)


@pytest.fixture(scope="module")
def double(bring_up, tiny):
    """Two replicas of each group."""
    return bring_up(tiny, "--groups", "4", "--replicas", "2", "--deterministic")


@pytest.fixture(scope="module")
def undisturbed(double):
    answers = double[1].ask_all(REQUESTS)
    assert [answer.error for answer in answers] == [None] * len(REQUESTS)
    return [answer.tokens for answer in answers]


def first(up, role):
    """Name of the first process whose name begins so."""
    return next(e["process"] for e in up.events if e["event"] == "ready" and e["process"].startswith(role))


def ask_and_kill(deployment, *names):
    """Answers of all requests, while these processes are killed in their midst and started again by `moe up`."""
    up, clients = deployment
    before = len(up.events)

    def kill():
        for name in names:
            os.kill(up.pid(name), signal.SIGKILL)

    answers = clients.ask_all(REQUESTS, meanwhile=kill, after=30)
    for name in names:
        up.until("ready", name, after=up.until("starting", name, after=before))
    return answers


def answered_in_time(clients, each, patience_s=30.0):
    """Whether the request is answered as soon as the router has read the directory again."""
    until = time.monotonic() + patience_s
    while clients.ask(each).error is not None:
        if time.monotonic() > until:
            return False
    return True


def test_every_answer_has_the_length_asked_for(undisturbed):
    assert [len(tokens) for tokens in undisturbed] == [LENGTH] * len(REQUESTS)


def test_a_killed_expert_with_another_replica_fails_no_request_and_changes_no_token(double, undisturbed):
    answers = ask_and_kill(double, first(double[0], "tiny"))
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)


def test_a_killed_expert_without_another_replica_stalls_requests_until_it_is_back_and_changes_no_token(
    single, undisturbed
):
    answers = ask_and_kill(single, first(single[0], "tiny"))
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)


def test_killed_experts_of_every_group_stall_requests_until_they_are_back_and_change_no_token(single, undisturbed):
    groups = sorted({e["process"] for e in single[0].events if e.get("process", "").startswith("tiny")})
    answers = ask_and_kill(single, *groups)
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)


def test_a_killed_aggregator_fails_no_request_and_changes_no_token(double, undisturbed):
    answers = ask_and_kill(double, first(double[0], "agg"))
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)


def test_a_request_gives_the_same_tokens_alone_as_in_company(double, undisturbed):
    assert double[1].ask(REQUESTS[3]).tokens == undisturbed[3]


def test_no_degradation_is_reported_when_nothing_was_degraded(double):
    assert list(double[1].ask(REQUESTS[0]).final.degradations) == []


def test_a_missing_expert_under_renormalise_fails_no_request_and_is_named_in_the_answers(bring_up, tiny):
    """One expert a group: a token of two experts has one left. With both in the killed group its request would fail."""
    deployment = bring_up(tiny, "--groups", "8", "--missing-policy", "renormalise", "--aggregator", "embedded")
    answers = ask_and_kill(deployment, first(deployment[0], "tiny"))
    assert [answer.error for answer in answers] == [None] * len(REQUESTS)
    assert {d.kind for answer in answers for d in answer.final.degradations} == {"renormalised"}


def test_a_missing_expert_under_fail_ends_requests_with_unavailable_and_the_next_ones_work(bring_up, tiny):
    deployment = bring_up(tiny, "--groups", "4", "--missing-policy", "fail", "--aggregator", "embedded")
    answers = ask_and_kill(deployment, first(deployment[0], "tiny"))
    codes = {answer.error.code().name for answer in answers if answer.error}
    assert (codes, answered_in_time(deployment[1], REQUESTS[0])) == ({"UNAVAILABLE"}, True)


def test_moe_up_tells_what_deterministic_mode_costs(double):
    up, _ = double
    told = up.events[up.until("deterministic", "router-0") - 1]
    assert told["cost"].startswith("a step takes, without the experts: 1 row ")
