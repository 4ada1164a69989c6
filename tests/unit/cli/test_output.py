import pytest
from moe.cli import output


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb\tc", "a\nb\tc"), ("\x1b[31mred", "�[31mred"), ("\x07\x9b", "��"), ("é 日本", "é 日本"), ("a\rb", "a�b")],
)
def test_text_can_not_steer_a_terminal(text, shown):
    assert output.safe(text) == shown


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_400_000, "98.4 MB"), (5 * 10**12, "5.0 TB")]
)
def test_sizes_are_told_in_decimal_units(count, text):
    assert output.bytes_text(count) == text


def test_facts_are_aligned():
    assert output.facts_text({"a": 1, "long": "x"}) == "a     1\nlong  x"
