"""Slots by expert, and what happens to a step's sequences."""

import numpy as np
import torch
from moe.router.accounting import SlotCounter
from moe.router.call_result import LayerResult, RowTrouble
from moe.router.ledger import StepLedger, owners_of
from moe.runtime.errors import Unavailable


def test_slots_are_counted_by_sequence_over_layers_of_different_width() -> None:
    counter = SlotCounter(experts=4)
    owners = np.array([0, 0, 1])
    counter.note(np.array([[0, 3], [3, 1], [2, 2]]), owners, experts=4)
    counter.note(np.array([[0, 3], [1, 2], [2, 0]]), owners, experts=3)  # 3 is a dropped slot in this layer
    assert counter.finish(2).tolist() == [[2, 2, 1, 2], [1, 0, 3, 0]]


def test_the_total_grows_and_a_new_step_begins_at_nothing() -> None:
    counter = SlotCounter(experts=2)
    for _ in range(2):
        counter.note(np.array([[0], [1], [1]]), np.array([0, 0, 0]), experts=2)
        counter.finish(1)
    assert (counter.finish(1).tolist(), counter.total.tolist()) == ([[0, 0]], [2, 4])


def test_rows_belong_to_sequences_in_order() -> None:
    assert owners_of([2, 1, 3]).tolist() == [0, 0, 1, 2, 2, 2]


def test_a_lost_sequence_keeps_its_first_error_and_sends_no_more_rows() -> None:
    ledger = StepLedger(owners_of([2, 1]), 2)
    first, second = Unavailable("first"), Unavailable("second")
    ledger.apply(ledger.owners, LayerResult(torch.zeros(3, 1), (RowTrouble(torch.tensor([1]), "x", first),)))
    ledger.lose_all(second)
    assert (ledger.errors, ledger.keep(np.array([0, 1])).tolist()) == ({0: first, 1: second}, [False, False])


def test_a_degradation_counts_layer_calls_and_not_rows() -> None:
    ledger = StepLedger(owners_of([2, 1]), 2)
    for reason in ("layer 0", "layer 1"):
        trouble = RowTrouble(torch.tensor([0, 1]), reason)
        ledger.apply(ledger.owners, LayerResult(torch.zeros(3, 1), (trouble,)))
    found = ledger.degradations
    assert (list(found), found[0].layer_calls, found[0].reason) == ([0], 2, "layer 1")


def test_what_a_failed_step_has_left_does_not_reach_the_next() -> None:
    counter = SlotCounter(experts=2)
    counter.note(np.array([[0], [1], [1]]), np.array([0, 1, 2]), experts=2)
    counter.drop()
    counter.note(np.array([[1]]), np.array([0]), experts=2)
    assert (counter.finish(1).tolist(), counter.total.tolist()) == ([[0, 1]], [0, 1])
