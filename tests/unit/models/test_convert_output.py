"""A conversion gives a whole package or nothing: interrupted, killed, out of disk, in the way of something."""

import errno
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
from moe.models.catalog import list_packages
from moe.models.convert import convert_checkpoint, output
from moe.models.errors import DiskFullError, OutputError, PackageNotFoundError
from moe.models.package import Package
from support.families import write_checkpoint


def convert_until_experts(source: Path, out: Path, reached: Event) -> None:
    """Runs in a process of its own: converts up to the first expert, says so and stays there."""

    def stop(done: int, total: int, label: str) -> None:
        if label.startswith("experts"):
            reached.set()
            time.sleep(600)

    torch.set_num_threads(1)  # OpenMP's threads don't survive a fork
    convert_checkpoint(source, out, progress=stop)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("olmoe", tmp_path_factory.mktemp("output") / "source")


@pytest.fixture
def running(source: Path, tmp_path: Path) -> Iterator[BaseProcess]:
    """A conversion to `out`, in another process, that has come to the experts and stays there."""
    context = multiprocessing.get_context("fork")  # importing everything anew would take seconds
    reached = context.Event()
    process = context.Process(target=convert_until_experts, args=(source, tmp_path / "out", reached), daemon=True)
    process.start()
    assert reached.wait(60)
    yield process
    process.kill()
    process.join()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_a_killed_run_leaves_is_no_package(running: BaseProcess, tmp_path: Path) -> None:
    running.kill()
    running.join()
    (leftover,) = tmp_path.iterdir()

    assert list_packages(tmp_path) == []
    with pytest.raises(PackageNotFoundError):
        Package.open(leftover)


def test_what_a_killed_run_leaves_is_removed_by_the_next(running: BaseProcess, source: Path, tmp_path: Path) -> None:
    running.kill()
    running.join()
    convert_checkpoint(source, tmp_path / "out")

    assert names(tmp_path) == ["out"]


def test_another_run_to_the_same_target_is_left_alone(running: BaseProcess, source: Path, tmp_path: Path) -> None:
    convert_checkpoint(source, tmp_path / "out")

    assert len(names(tmp_path)) == 2
    assert running.is_alive()


def test_leftovers_of_another_target_are_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "other.partial-12345678").mkdir()
    convert_checkpoint(source, tmp_path / "out")

    assert names(tmp_path) == ["other.partial-12345678", "out"]


def test_an_interrupted_run_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int, label: str) -> None:
        if label.startswith("experts"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(source, tmp_path / "out", progress=interrupt)

    assert names(tmp_path) == []


def test_an_existing_package_is_not_replaced_unasked(source: Path, tmp_path: Path) -> None:
    convert_checkpoint(source, tmp_path / "out", licence="first")

    with pytest.raises(OutputError, match="out exists already"):
        convert_checkpoint(source, tmp_path / "out", licence="second")


def test_an_existing_package_is_replaced_when_asked(source: Path, tmp_path: Path) -> None:
    convert_checkpoint(source, tmp_path / "out", licence="first")
    convert_checkpoint(source, tmp_path / "out", licence="second", replace=True)

    assert (Package.open(tmp_path / "out", "sha256").manifest.licence, names(tmp_path)) == ("second", ["out"])


def test_a_failed_replacement_keeps_the_old_package(source: Path, tmp_path: Path) -> None:
    def fail(done: int, total: int, label: str) -> None:
        raise RuntimeError

    convert_checkpoint(source, tmp_path / "out", licence="first")
    with pytest.raises(RuntimeError):
        convert_checkpoint(source, tmp_path / "out", licence="second", replace=True, progress=fail)

    assert (Package.open(tmp_path / "out", "sha256").manifest.licence, names(tmp_path)) == ("first", ["out"])


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_what_is_no_package_is_never_replaced(source: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "directory":
        out.mkdir()
        (out / "precious").write_text("x")
    elif kind == "file":
        out.write_text("x")
    else:
        out.symlink_to(tmp_path / "nowhere")

    with pytest.raises(OutputError, match="no model package"):
        convert_checkpoint(source, out, replace=True)


def test_a_target_that_appears_meanwhile_is_kept(source: Path, tmp_path: Path) -> None:
    def appear(done: int, total: int, label: str) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "precious").write_text("x")

    with pytest.raises(OutputError, match="appeared"):
        convert_checkpoint(source, tmp_path / "out", progress=appear)

    assert names(tmp_path / "out") == ["precious"]


def test_missing_parents_are_made(source: Path, tmp_path: Path) -> None:
    convert_checkpoint(source, tmp_path / "a" / "b" / "out")

    assert Package.open(tmp_path / "a" / "b" / "out")


def test_a_parent_that_is_a_file_is_an_output_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(OutputError, match="out can't be written"):
        convert_checkpoint(source, tmp_path / "file" / "out")


def test_a_disk_too_small_is_told_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(output.shutil, "disk_usage", lambda path: usage._replace(free=100_000))

    with pytest.raises(DiskFullError, match=r"needs [\d,]+ bytes and 100,000 are free") as caught:
        convert_checkpoint(source, tmp_path / "out")

    assert (caught.value.needed > (source / "model.safetensors").stat().st_size, names(tmp_path)) == (True, [])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_told_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write, calls = os.write, []

    def fill_up(descriptor: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 60:
            raise OSError(number, os.strerror(number))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", fill_up)
    with pytest.raises(DiskFullError, match="not enough disk space"):
        convert_checkpoint(source, tmp_path / "out")

    assert names(tmp_path) == []


def test_the_manifest_is_written_last(source: Path, tmp_path: Path) -> None:
    convert_checkpoint(source, tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}

    assert max(times, key=lambda path: times[path]).name == "manifest.json"
    assert time.time_ns() >= max(times.values())


def test_a_package_that_another_run_made_meanwhile_is_left_alone(source: Path, tmp_path: Path) -> None:
    def finish_first(done: int, total: int, label: str) -> None:
        if done == total and not (tmp_path / "out").exists():
            convert_checkpoint(source, tmp_path / "out", name="first")

    with pytest.raises(OutputError, match="appeared while"):
        convert_checkpoint(source, tmp_path / "out", name="second", progress=finish_first)
    assert (Package.open(tmp_path / "out").manifest.name, names(tmp_path)) == ("first", ["out"])
