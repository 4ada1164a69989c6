"""What the engine's thread is told, and until when it waits."""

import threading
import time

import torch
from moe.wire.mailbox import GRACE_S, Mailbox
from moe.wire.port import AggregatorLost, CallFailed, Combined, FailureKind, Incomplete, PartFailure

FAILURE = PartFailure(0, "a", FailureKind.FAILED, "broken")


def mailbox(seconds: float = 20.0) -> tuple[Mailbox, float]:
    deadline = time.monotonic() + seconds
    return Mailbox(deadline), deadline


def test_failures_are_told_together_and_once() -> None:
    box, deadline = mailbox()
    box.fail(FAILURE)
    box.fail(FAILURE)
    assert box.fetch(deadline) == Incomplete((FAILURE, FAILURE))
    assert box.fetch(time.monotonic()) == Incomplete()


def test_an_answer_stands_above_failures() -> None:
    box, deadline = mailbox()
    answer = Combined(torch.zeros(1, 1))
    box.fail(FAILURE)
    box.finish(answer)
    assert box.fetch(deadline) is answer


def test_the_first_outcome_stands() -> None:
    box, deadline = mailbox()
    box.finish(AggregatorLost("first"))
    box.finish(AggregatorLost("second"))
    assert box.fetch(deadline) == AggregatorLost("first")


def test_news_wakes_the_one_who_waits() -> None:
    box, deadline = mailbox()
    threading.Timer(0.05, lambda: box.fail(FAILURE)).start()
    assert box.fetch(deadline) == Incomplete((FAILURE,))


def test_nothing_comes_until_the_moment_given() -> None:
    box, _ = mailbox()
    until = time.monotonic() + 0.05
    assert box.fetch(until) == Incomplete()
    assert time.monotonic() >= until


def test_who_waits_for_the_deadline_gets_the_end_of_the_call_a_grace_later() -> None:
    box, deadline = mailbox(0.05)
    outcome = box.fetch(deadline)
    assert isinstance(outcome, CallFailed)
    assert outcome.deadline
    assert time.monotonic() >= deadline + GRACE_S


def test_an_answer_within_the_grace_is_taken() -> None:
    box, deadline = mailbox(0.05)
    threading.Timer(0.1, lambda: box.finish(Combined(torch.zeros(1, 1)))).start()
    assert isinstance(box.fetch(deadline), Combined)
