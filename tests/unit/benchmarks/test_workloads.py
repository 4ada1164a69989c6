from itertools import pairwise

import pytest

from benchmarks.end_to_end.workloads import (
    Times,
    batch,
    mixed,
    poisson,
    requests_per_second,
    single,
    throughput,
    under_load,
)


def test_w1_is_sixteen_requests_at_once() -> None:
    sent = batch(100)
    assert [(len(one.request.prompt), one.request.new, one.after_s) for one in sent] == [(128, 64, 0.0)] * 16
    assert all(3 <= token < 100 for one in sent for token in one.request.prompt)


def test_the_same_seed_makes_the_same_requests() -> None:
    assert batch(100, seed=4) == batch(100, seed=4)
    assert batch(100, seed=4) != batch(100, seed=5)
    assert poisson(100, 2.0, 5, seed=1) == poisson(100, 2.0, 5, seed=1)


def test_arrivals_come_at_the_rate_that_was_asked_for() -> None:
    sent = poisson(100, 5.0, 4000, seed=7)
    assert sent[0].after_s == 0.0
    # 3999 exponential gaps of mean 0.2 s: their sum is within 5 standard errors (5 / sqrt(3999) = 8%) of 799.8 s.
    assert sent[-1].after_s == pytest.approx(799.8, rel=0.08)
    gaps = [after.after_s - before.after_s for before, after in pairwise(sent)]
    mean = sum(gaps) / len(gaps)
    # An exponential's standard deviation is its mean; a steady arrival's would be 0.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.15)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_never_comes_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        poisson(100, rate, 3)


def test_mixed_lengths_reach_over_the_whole_range() -> None:
    lengths = sorted(len(one.request.prompt) for one in mixed(100, 500))
    assert 16 <= lengths[0] < 20
    assert 450 < lengths[-1] <= 512
    # Even in the logarithm: half of them are shorter than the geometric mean, 90.5.
    assert sum(length < 90.5 for length in lengths) == pytest.approx(250, abs=56)  # five standard deviations


def test_times_are_counted_from_the_submission() -> None:
    times = Times(10.0, ((10.5, 1), (10.6, 2), (10.9, 4)))
    assert times.first_s == pytest.approx(0.5)
    assert times.per_token_s == pytest.approx(0.4 / 3)
    assert Times(0.0, ((1.0, 1),)).per_token_s is None


def test_throughput_runs_from_the_first_submission_to_the_last_token() -> None:
    times = [Times(1.0, ((2.0, 1), (3.0, 10))), Times(1.5, ((2.0, 1), (5.0, 30)))]
    assert throughput(times) == pytest.approx(40 / 4)
    assert requests_per_second(times) == pytest.approx(2 / 4)


def test_figures_are_in_milliseconds() -> None:
    times = [Times(0.0, ((0.1, 1), (0.3, 3))), Times(0.0, ((0.3, 1), (0.7, 3)))]
    assert single(times) == pytest.approx({"first_ms": 200.0, "per_token_ms": 150.0})
    assert under_load(times)["first_p99_ms"] == pytest.approx(298.0)
    assert under_load(times)["per_token_p50_ms"] == pytest.approx(150.0)
