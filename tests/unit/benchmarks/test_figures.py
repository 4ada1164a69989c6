import pytest

from benchmarks.figures import paired_ratio, percentile, summary
from benchmarks.tables import number, table


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([10.0, 20.0], 95) == pytest.approx(19.5)
    assert percentile([7.0], 99) == 7.0


@pytest.mark.parametrize(("samples", "percent"), [([], 50.0), ([1.0], 101.0), ([1.0], -1.0)])
def test_a_percentile_of_nothing_is_refused(samples: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(samples, percent)


def test_the_spread_is_a_share_of_the_median() -> None:
    figures = summary([8.0, 10.0, 13.0])
    assert (figures.median, figures.least, figures.most, figures.rounds) == (10.0, 8.0, 13.0, 3)
    assert figures.spread == pytest.approx(0.5)


def test_a_load_that_both_share_in_a_round_cancels() -> None:
    assert paired_ratio([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]) == 2.0


def test_rounds_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rounds against 1"):
        paired_ratio([1.0, 2.0], [1.0])


def test_a_table_is_aligned_and_markdown() -> None:
    assert table(["engine", "ms"], [["ours", "1.50"], ["a peer", "absent"]]).splitlines() == [
        "| engine |     ms |",
        "| ------ | -----: |",
        "| ours   |   1.50 |",
        "| a peer | absent |",
    ]


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells and the header 2"):
        table(["a", "b"], [["only"]])


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "absent"), (0.0, "0"), (0.01234, "0.012"), (1.2345, "1.23"), (123.45, "123"), (12345.6, "12,346")],
)
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert number(value) == text
