"""Processes are killed while requests run: none fails, and their tokens are those of an undisturbed run.

All of it under `--deterministic`, so that a batch of another make-up after the fault can't change a rounding.
"""

import os
import signal

import pytest
from support.streams import request

PROMPTS = [[5], [7, 9, 11], list(range(3, 20)), list(range(40, 70)), [99, 98, 97, 96], [12] * 9]
REQUESTS = [request(prompt) for prompt in PROMPTS]


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


def victim(up, role):
    started = [event["process"] for event in up.events if event["event"] == "ready"]
    return next(name for name in started if name.startswith(role))


def kill(up, name):
    os.kill(up.pid(name), signal.SIGKILL)


def test_every_answer_has_the_length_asked_for(undisturbed):
    assert [len(tokens) for tokens in undisturbed] == [48] * len(REQUESTS)


def test_a_killed_expert_with_another_replica_fails_no_request_and_changes_no_token(double, undisturbed):
    up, clients = double
    answers = clients.ask_all(REQUESTS, meanwhile=lambda: kill(up, victim(up, "tiny")), after=30)
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)


def test_a_killed_expert_without_another_replica_stalls_requests_until_it_is_back_and_changes_no_token(
    single, undisturbed
):
    up, clients = single
    answers = clients.ask_all(REQUESTS, meanwhile=lambda: kill(up, victim(up, "tiny")), after=30)
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)


def test_killed_experts_of_every_group_stall_requests_until_they_are_back_and_change_no_token(single, undisturbed):
    up, clients = single
    groups = sorted({event["process"] for event in up.events if event.get("process", "").startswith("tiny")})

    def kill_all():
        for name in groups:
            kill(up, name)

    answers = clients.ask_all(REQUESTS, meanwhile=kill_all, after=30)
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)


def test_a_killed_aggregator_fails_no_request_and_changes_no_token(double, undisturbed):
    up, clients = double
    answers = clients.ask_all(REQUESTS, meanwhile=lambda: kill(up, victim(up, "agg")), after=30)
    assert ([a.error for a in answers], [a.tokens for a in answers]) == ([None] * len(REQUESTS), undisturbed)


def test_a_request_gives_the_same_tokens_alone_as_in_company(double, undisturbed):
    assert double[1].ask(REQUESTS[3]).tokens == undisturbed[3]


def test_no_degradation_is_reported_when_nothing_was_degraded(double):
    assert list(double[1].ask(REQUESTS[0]).final.degradations) == []


def test_a_missing_expert_under_renormalise_is_named_in_the_answer(bring_up, tiny):
    up, clients = bring_up(tiny, "--groups", "4", "--missing-policy", "renormalise", "--aggregator", "embedded")
    answers = clients.ask_all(REQUESTS, meanwhile=lambda: kill(up, victim(up, "tiny")), after=30)
    kinds = {d.kind for answer in answers if answer.final for d in answer.final.degradations}
    assert kinds == {"renormalised"}


def test_a_missing_expert_under_fail_ends_requests_with_unavailable_and_the_next_ones_work(bring_up, tiny):
    up, clients = bring_up(tiny, "--groups", "4", "--missing-policy", "fail", "--aggregator", "embedded")
    name = victim(up, "tiny")
    answers = clients.ask_all(REQUESTS, meanwhile=lambda: kill(up, name), after=30)
    up.until("ready", name, times=2)
    codes = {answer.error.code().name for answer in answers if answer.error}
    assert (codes, clients.ask(REQUESTS[0]).error) == ({"UNAVAILABLE"}, None)
