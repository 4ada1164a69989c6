import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from moe.cli.commands.bench import PROGRAMS, bench, checkout
from moe.cli.errors import UsageError


def test_outside_a_checkout_it_says_what_to_do(tmp_path: Path) -> None:
    installed = tmp_path / "lib" / "python3" / "site-packages" / "moe" / "cli" / "commands" / "bench.py"
    with pytest.raises(UsageError, match="clone the repository"):
        checkout(installed)


def test_every_program_is_there() -> None:
    for module, _ in PROGRAMS.values():
        path = checkout().joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_it_lists_its_programs() -> None:
    shown = CliRunner().invoke(bench, ["--help"]).output
    assert all(name in shown for name in PROGRAMS)


def test_words_reach_the_program_and_its_exit_code_comes_back() -> None:
    words = ["bench", "layer-call", "--wire", "pigeon"]
    done = subprocess.run([sys.executable, "-m", "moe.cli.main", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'pigeon'" in done.stderr
