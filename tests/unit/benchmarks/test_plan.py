import pytest

from benchmarks.end_to_end.plan import Effort, Remaining, minutes, remaining


def test_a_turn_without_a_workload_is_expected_to_be_shorter() -> None:
    everything, without_load = Effort(), Effort(("W1", "W2"))
    assert without_load.nominal_s("M", "vllm-cpu") < everything.nominal_s("M", "vllm-cpu")
    assert everything.nominal_s("S", "vllm-cpu") < everything.nominal_s("M", "vllm-cpu")


def test_what_is_left_follows_the_pace_so_far() -> None:
    left = Remaining([10.0, 20.0, 30.0])
    assert left.left_s == 60.0
    left.took(20.0)
    assert left.left_s == pytest.approx(100.0)
    left.took(40.0)
    left.took(1.0)
    assert left.left_s == 0.0


def test_the_bar_is_full_at_the_end() -> None:
    left = remaining([("S", "moe, one process"), ("S", "llama.cpp bf16")], Effort())
    left.took(1.0)
    assert left.bar(4) == "[##--] 1 of 2"
    left.took(1.0)
    assert left.bar(4) == "[####] 2 of 2"


def test_minutes_are_for_people() -> None:
    assert (minutes(42.0), minutes(600.0)) == ("42 s", "10 min")
