"""What an expert does not start with: named on stderr, exit code 2. Run in this process, for speed."""

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moe.expert.__main__ import main
from moe.models.manifest import MANIFEST_NAME, PROBES_NAME, expert_file
from support.expert_process import command
from support.tiny_package import write_package

Refusal = Callable[..., str]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Undoes what a process does to itself once and for all."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    gc.unfreeze()


@pytest.fixture
def refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Runs an expert that has to end with exit code 2; returns its `error:` line."""

    def run(*more: str, experts: str = "0,1,2,3") -> str:
        words = command(tmp_path / "tiny", f"unix:{tmp_path}/expert.sock", *more, experts=experts)
        code = main(words[words.index("moe.expert") + 1 :])
        last = capsys.readouterr().err.splitlines()[-1]
        assert code == 2, last
        return last

    return run


def test_a_corrupt_file_is_refused_by_name(tmp_path, refusal):
    path = write_package(tmp_path / "tiny") / expert_file(1)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert refusal().startswith(f"error: file {path}: has sha256")


@pytest.mark.parametrize("name", [expert_file(1), PROBES_NAME])
def test_a_missing_file_is_refused_by_name(tmp_path, refusal, name):
    path = write_package(tmp_path / "tiny") / name
    path.unlink()
    assert refusal() == f"error: file {path}: is missing"


def test_a_nan_in_the_weights_is_refused_by_file_and_tensor(tmp_path, refusal):
    path = write_package(tmp_path / "tiny", poison=(0, 2, "up")) / expert_file(2)
    wanted = f"error: file {path}: tensor 'layers.0.up' holds 1 values that are NaN or infinite"
    assert refusal().startswith(wanted)


def test_a_broken_manifest_is_refused_by_name(tmp_path, refusal):
    path = write_package(tmp_path / "tiny") / MANIFEST_NAME
    path.write_text("{")
    assert refusal().startswith(f"error: file {path}")


def test_an_expert_that_the_package_lacks_is_refused(tmp_path, refusal):
    write_package(tmp_path / "tiny")
    assert refusal(experts="9") == "error: experts: there is no expert 9; ids go from 0 to 3"


def test_an_unknown_kernel_is_refused_with_the_known_ones(tmp_path, refusal):
    write_package(tmp_path / "tiny")
    assert refusal("--kernel", "cuda") == (
        "error: kernel: group_ffn: no back end 'cuda'; choose one of auto, native, native_w8a8, reference, torch"
    )


def test_an_address_that_can_not_be_had_is_refused_by_name(tmp_path, refusal):
    write_package(tmp_path / "tiny")
    assert "cannot listen on 'nonsense'" in refusal("--listen", "nonsense")


def test_a_refusal_leaves_no_socket(tmp_path, refusal):
    write_package(tmp_path / "tiny", poison=(0, 2, "up"))
    refusal()
    assert not (tmp_path / "expert.sock").exists()
