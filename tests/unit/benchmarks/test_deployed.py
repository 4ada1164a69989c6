"""Where the tax of distribution goes: readings are divided by calls, and the table adds up."""

from benchmarks.router_step.deployed import PerCall, Reading, Side, lines


def test_what_came_to_pass_is_told_by_layer_call_and_a_kernel_by_part() -> None:
    before, after = Reading(1.0, 100, 10, 0.5), Reading(1.5, 300, 266, 0.75)
    assert after.since(before, 100) == PerCall(cpu_us=5000.0, switches=2.0, parts=2.56, kernel_us=976.5625)


def test_without_experts_there_is_no_kernel() -> None:
    assert Reading(2.0, 1).since(Reading(1.0, 1), 10).kernel_us == 0.0


def test_the_table_shows_the_difference_and_what_the_kernel_does_not_explain() -> None:
    here = Side(900.0, 300.0, 50.0, 500.0, PerCall(1200.0, 3.0, 0.0, 0.0), PerCall(0.0, 0.0, 0.0, 0.0))
    there = Side(1100.0, 320.0, 80.0, 700.0, PerCall(600.0, 5.0, 0.0, 0.0), PerCall(900.0, 8.0, 1.9, 450.0))
    text = "\n".join(lines({"one process": here, "deployed": there}))
    cells = {line.rsplit(maxsplit=3)[0].strip(): line.split()[-3:] for line in text.splitlines()}
    assert cells["exchange"] == ["500", "700", "+200"]
    assert cells["the rest: hop, wake-ups, the slower part"] == ["-", "250", "-"]
    assert "experts 8.0" in text
