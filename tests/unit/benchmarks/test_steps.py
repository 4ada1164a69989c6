import importlib.util
from pathlib import Path

import pytest

from benchmarks import __main__ as everything
from benchmarks.__main__ import Step, main, steps


@pytest.mark.parametrize("quick", [True, False])
def test_every_program_of_a_run_is_there(quick: bool) -> None:
    assert all(importlib.util.find_spec(step.words[0]) for step in steps(quick=quick))


def test_a_program_that_fails_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = [Step("bad", ("timeit", "-n1", "-r1", "1/0"), 1, into=False), Step("good", ("timeit", "-n1", "-r1"), 1)]
    monkeypatch.setattr(everything, "steps", lambda *, quick: [made[0], Step("good", made[1].words, 1, into=False)])
    assert main([]) == 1
    told = capfd.readouterr().err
    assert "2 programs, about 2 s on a quiet machine" in told
    assert "good: ended with 0" in told
    assert "failed: bad\n" in told


def test_only_the_kernels_threads_wait_asleep() -> None:
    assert {step.words[0] for step in steps(quick=False) if step.environment} == {"benchmarks.ffn"}
