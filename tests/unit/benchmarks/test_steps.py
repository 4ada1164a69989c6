import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import __main__ as everything
from benchmarks.__main__ import Step, long_steps, main, quick_steps, steps


@pytest.mark.parametrize("planned", [quick_steps, steps, long_steps])
def test_every_program_of_a_run_is_there(planned: Callable[[], list[Step]]) -> None:
    assert all(importlib.util.find_spec(step.words[0]) for step in planned())


@pytest.mark.parametrize("step", steps(), ids=lambda step: step.about)
def test_a_program_takes_its_words(step: Step) -> None:
    done = subprocess.run([sys.executable, "-m", *step.words, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_takes_less_than_an_hour_where_nothing_else_runs() -> None:
    assert sum(step.seconds for step in steps()) < 3600 < sum(step.seconds for step in long_steps())


def test_a_program_that_fails_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = [Step("bad", ("timeit", "-n1", "-r1", "1/0"), 1, into=False), Step("good", ("timeit", "-n1", "-r1"), 1)]
    monkeypatch.setattr(everything, "steps", lambda: [made[0], Step("good", made[1].words, 1, into=False)])
    assert main([]) == 1
    told = capfd.readouterr().err
    assert "2 programs, about 2 s on a quiet machine" in told
    assert "good: ended with 0" in told
    assert "failed: bad\n" in told


def test_only_the_kernels_threads_wait_asleep() -> None:
    assert {step.words[0] for step in steps() + long_steps() if step.environment} == {"benchmarks.ffn"}
