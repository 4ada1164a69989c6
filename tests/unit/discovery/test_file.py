"""The directory in a file: one process writes, others follow."""

import dataclasses
import json
import os
import threading
import time

import pytest
from moe.discovery.directory import ExpertReplica, Snapshot
from moe.discovery.document import DirectoryError
from moe.discovery.file import FileDirectory, write

PATIENCE_S = 10.0


def snapshot(version, replicas=1, model="demo"):
    names = [f"demo-{index:03d}" for index in range(replicas)]
    experts = tuple(
        ExpertReplica(f"{name}-0", name, (index,), f"unix:/run/{name}.sock", ready=True)
        for index, name in enumerate(names)
    )
    return Snapshot(version, model, experts)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "directory.json"


@pytest.fixture
def follow(path):
    """Opens directories on the file, closed at the end."""
    opened = []

    def open_directory():
        opened.append(FileDirectory(path, poll_interval_s=0.005))
        return opened[-1]

    yield open_directory
    for directory in opened:
        directory.close()


def test_what_is_in_the_file_is_there_from_the_start(path, follow):
    write(path, snapshot(3))
    assert follow().current() == snapshot(3)


def test_a_directory_without_a_file_is_empty_until_one_is_written(path, follow):
    directory = follow()
    before = directory.current()
    write(path, snapshot(1))
    assert (before, directory.wait_newer(0, PATIENCE_S)) == (Snapshot(0, "", ()), snapshot(1))


def test_a_change_wakes_whoever_waits(path, follow):
    write(path, snapshot(1))
    directory = follow()
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(directory.wait_newer(1, PATIENCE_S)))
    waiter.start()
    write(path, snapshot(2, replicas=2))
    waiter.join(PATIENCE_S)
    assert seen == [snapshot(2, replicas=2)]


def test_waiting_for_nothing_new_ends_with_what_is_there(path, follow):
    write(path, snapshot(4))
    directory = follow()
    began = time.monotonic()
    assert directory.wait_newer(4, 0.05) == snapshot(4)
    assert 0.05 <= time.monotonic() - began < PATIENCE_S


def test_something_newer_is_returned_without_waiting(path, follow):
    write(path, snapshot(4))
    assert follow().wait_newer(3, 0.0) == snapshot(4)


def test_a_broken_file_keeps_the_last_good_snapshot_and_is_logged_once(path, follow, caplog):
    write(path, snapshot(1))
    directory = follow()
    path.write_text("{broken")
    wait_until(lambda: "not JSON" in caplog.text)
    kept = directory.current()
    write(path, snapshot(2))
    directory.wait_newer(1, PATIENCE_S)
    assert kept == snapshot(1)
    assert caplog.text.count("not JSON") == 1


def test_a_file_that_is_not_utf_8_keeps_the_last_good_snapshot(path, follow, caplog):
    write(path, snapshot(1))
    directory = follow()
    path.write_bytes(b"\xff\xfe")
    wait_until(lambda: "utf-8" in caplog.text)
    assert directory.current() == snapshot(1)


def test_a_file_that_disappears_keeps_the_last_good_snapshot_and_its_successor_is_followed(path, follow, caplog):
    write(path, snapshot(1))
    directory = follow()
    path.unlink()
    wait_until(lambda: "No such file" in caplog.text)
    kept = directory.wait_newer(1, 0.1)
    write(path, snapshot(2))
    assert (kept, directory.wait_newer(1, PATIENCE_S)) == (snapshot(1), snapshot(2))
    assert caplog.text.count("No such file") == 1


def test_a_writer_that_starts_counting_again_is_followed_with_versions_that_grow(path, follow):
    write(path, snapshot(90))
    directory = follow()
    write(path, snapshot(1, model="another"))
    assert directory.wait_newer(90, PATIENCE_S) == snapshot(91, model="another")


def test_the_same_snapshot_written_again_is_nothing_new(path, follow):
    write(path, snapshot(5))
    directory = follow()
    write(path, snapshot(5))
    assert directory.wait_newer(5, 0.1) == snapshot(5)


def test_a_rewrite_within_one_tick_of_the_clock_is_seen(path, follow):
    write(path, snapshot(1))
    directory = follow()
    status = path.stat()
    write(path, dataclasses.replace(snapshot(2), model="omed"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert directory.wait_newer(1, PATIENCE_S).model == "omed"


def test_readers_never_see_a_part_of_a_document(path):
    write(path, snapshot(1, replicas=50))
    stop = threading.Event()

    def rewrite():
        version = 1
        while not stop.is_set():
            version += 1
            write(path, snapshot(version, replicas=50))

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        counts = {len(json.loads(path.read_text())["experts"]) for _ in range(300)}
    finally:
        stop.set()
        writer.join()
    assert counts == {50}


def test_a_snapshot_that_is_refused_leaves_the_old_file_and_no_other(path):
    write(path, snapshot(1))
    with pytest.raises(DirectoryError):
        write(path, Snapshot(-1, "demo", ()))
    assert [file.name for file in path.parent.iterdir()] == ["directory.json"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError, match="taken"):
        write(target, snapshot(1))
    assert list(tmp_path.iterdir()) == [target]


def test_closing_wakes_whoever_waits_and_may_be_done_twice(path):
    write(path, snapshot(1))
    directory = FileDirectory(path)
    began = time.monotonic()
    waiter = threading.Thread(target=lambda: directory.wait_newer(1, 60))
    waiter.start()
    directory.close()
    directory.close()
    waiter.join(PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S


def wait_until(condition):
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.002)
