"""Which parts are known to be lost, by what is known of their streams."""

import pytest
from moe.wire.ledger import CallLedger
from moe.wire.port import FailureKind, PartFailure

LOST = FailureKind.STREAM_LOST
OVERLOADED = PartFailure(0, "a", FailureKind.OVERLOADED, "full")


def sent_to_a(instance: str | None = "a1") -> CallLedger:
    ledger = CallLedger()
    ledger.sent(0, "a", instance)
    return ledger


def test_a_dispatch_without_a_receipt_is_lost_with_its_stream() -> None:
    assert sent_to_a().stream_lost("a", LOST, "gone") == [PartFailure(0, "a", LOST, "gone")]


def test_a_pushed_part_is_not_lost_with_the_dispatch_stream() -> None:
    ledger = sent_to_a()
    ledger.receipt(0, "a", None)
    assert ledger.stream_lost("a", LOST, "gone") == []


def test_another_endpoints_stream_does_not_matter() -> None:
    assert sent_to_a().stream_lost("b", LOST, "gone") == []


def test_a_loss_is_reported_once() -> None:
    ledger = sent_to_a()
    ledger.stream_lost("a", LOST, "gone")
    assert ledger.stream_lost("a", LOST, "gone") == []


def test_a_failing_receipt_is_reported() -> None:
    assert sent_to_a().receipt(0, "a", OVERLOADED) == OVERLOADED


def test_a_receipt_from_where_the_part_was_sent_earlier_is_not_reported() -> None:
    ledger = sent_to_a()
    ledger.sent(0, "b", "b1")
    assert ledger.receipt(0, "a", OVERLOADED) is None


def test_the_first_of_two_receipts_from_one_endpoint_is_not_the_last_word() -> None:
    ledger = sent_to_a()
    ledger.sent(0, "a", "a1")
    assert ledger.receipt(0, "a", OVERLOADED) is None
    assert ledger.receipt(0, "a", OVERLOADED) == OVERLOADED


def test_a_part_sent_twice_is_pushed_only_when_both_are() -> None:
    ledger = sent_to_a()
    ledger.sent(0, "a", "a1")
    ledger.receipt(0, "a", None)
    assert [failure.part for failure in ledger.stream_lost("a", LOST, "gone")] == [0]


@pytest.mark.parametrize("pushed", [True, False])
def test_a_lost_source_takes_along_whatever_was_sent_to_that_process(pushed: bool) -> None:
    ledger = sent_to_a()
    if pushed:
        ledger.receipt(0, "a", None)
    assert [failure.part for failure in ledger.source_lost("a1", "broke")] == [0]


def test_a_lost_source_leaves_the_next_process_at_its_endpoint_alone() -> None:
    assert sent_to_a("a2").source_lost("a1", "broke") == []


def test_what_waits_for_a_stream_goes_to_the_process_that_opens_it() -> None:
    ledger = sent_to_a(None)
    ledger.opened("a", "a1")
    assert [failure.part for failure in ledger.source_lost("a1", "broke")] == [0]


def test_a_refused_part_is_reported_with_where_it_came_from() -> None:
    assert sent_to_a().refused(0, "NaN") == [PartFailure(0, "a", FailureKind.REFUSED, "NaN")]


def test_a_refused_part_that_was_not_sent_is_nobodys() -> None:
    assert sent_to_a().refused(5, "not in the plan") == []
