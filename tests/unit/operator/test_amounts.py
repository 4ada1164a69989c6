"""Amounts of processor and memory."""

from decimal import Decimal

import pytest
from moe.operator.amounts import amount, threads_of
from moe.operator.resources import Amounts, Resources


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", 2), ("500m", "0.5"), ("1.5", "1.5"), ("1k", 1000), ("1Ki", 1024), ("1Mi", 1048576), ("2Gi", 2147483648)],
)
def test_a_quantity_is_a_number(text, number):
    assert amount(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "Gi", "1Kim", "many"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises((ValueError, ArithmeticError)):
        amount(text)


@pytest.mark.parametrize(
    ("resources", "threads"),
    [
        (Resources(), 1),
        (Resources(requests=Amounts(cpu="4")), 4),
        (Resources(requests=Amounts(cpu="1"), limits=Amounts(cpu="2500m")), 2),
        (Resources(limits=Amounts(cpu="200m")), 1),
        (Resources(requests=Amounts(memory="1Gi")), 1),
    ],
)
def test_threads_are_the_whole_cores_of_the_limit_or_else_of_the_request(resources, threads):
    assert threads_of(resources) == threads
