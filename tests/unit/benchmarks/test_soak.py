"""What counts as growth, and which calls a soak makes."""

from benchmarks.memory import Memory
from benchmarks.soak import Reading, growth_kib, parser, tokens_of, too_much


def _readings(*router_kib: int) -> list[Reading]:
    return [Reading(n, 1.0, {"router": Memory(kib, 5), "expert 0": Memory(70, 5)}) for n, kib in enumerate(router_kib)]


def test_growth_counts_from_the_first_reading_to_the_last() -> None:
    assert growth_kib(_readings(100, 500, 130)) == {"router": 30, "expert 0": 0}


def test_a_process_that_grows_beyond_the_bound_is_told() -> None:
    assert too_much(_readings(100, 120, 131), 30) == {"router": 31}
    assert too_much(_readings(100, 120, 130), 30) == {}


def test_the_first_tenth_has_calls_of_every_size() -> None:
    calls = parser().parse_args([]).calls
    assert {tokens_of(call) for call in range(calls // 10)} == {tokens_of(call) for call in range(calls)} == {1, 16, 64}
