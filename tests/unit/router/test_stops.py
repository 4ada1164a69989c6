"""Stop texts: found across tokens, never shown, and what may become one is held back."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.router.stops import AnswerText, StopMatcher


def shown(stops: Sequence[str], pieces: Sequence[str]) -> list[str]:
    matcher = StopMatcher(stops)
    return [matcher.push(piece) for piece in pieces] + [matcher.flush()]


def test_a_stop_text_over_three_pieces_is_left_out_with_all_that_follows() -> None:
    assert shown(["\n\nUser:"], ["Hi.\n", "\nUs", "er: what", "ever"]) == ["Hi.", "", "", "", ""]


def test_what_turns_out_to_be_no_stop_text_is_shown_late() -> None:
    assert shown(["STOP"], ["a ST", "RAW S", "T"]) == ["a ", "STRAW ", "", "ST"]


def test_a_false_start_inside_a_stop_text_is_not_missed() -> None:
    assert shown(["aab"], ["a", "a", "a", "b", "c"]) == ["", "", "a", "", "", ""]


def test_of_two_stop_texts_complete_at_once_the_longer_is_named() -> None:
    matcher = StopMatcher(["b", "ab"])
    assert (matcher.push("xab"), matcher.matched) == ("x", "ab")


@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
@settings(max_examples=300, deadline=None)
def test_the_text_shown_ends_where_the_first_stop_text_to_be_complete_begins(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    expected = text if not ends else text[: min(ends)[0] + min(ends)[1]]
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert "".join(shown(stops, [text[a:b] for a, b in pairwise(edges)])) == expected


class Letters:
    """A stream whose token n is the n-th letter, and that owes a mark at the end."""

    def push(self, token: int) -> str:
        return chr(ord("a") + token)

    def flush(self) -> str:
        return "\ufffd"


def test_an_answer_ends_with_what_was_held_back_and_what_was_incomplete() -> None:
    text = AnswerText(Letters(), ["abz"])
    assert [text.push(0), text.push(1), text.finish()] == ["", "", "ab\ufffd"]


def test_an_answer_cut_by_a_stop_text_has_no_rest() -> None:
    text = AnswerText(Letters(), ["b"])
    assert ([text.push(0), text.push(1), text.finish()], text.stop_match) == (["a", "", ""], "b")


@pytest.mark.parametrize("token", [0, 1])
def test_an_answer_without_a_tokenizer_has_no_text(token: int) -> None:
    text = AnswerText(None, [])
    assert text.push(token) + text.finish() == ""
