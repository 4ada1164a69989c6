"""Threads and processes that end while they are measured."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cpu_time import context_switches, cpu_seconds
from benchmarks.memory import memory_of
from benchmarks.threads import of_each_thread

_CHURNS = """
import threading
print("on", flush=True)
while True:
    threads = [threading.Thread(target=int) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.fixture
def churning() -> Iterator[int]:
    """A process whose threads end all the time."""
    process = subprocess.Popen([sys.executable, "-c", _CHURNS], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_thread_that_ended_since_the_listing_has_nothing_to_tell(tmp_path: Path) -> None:
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    (tmp_path / "7" / "task" / "7" / "schedstat").write_text("5 0 1")
    (tmp_path / "7" / "task" / "8").symlink_to("gone")
    assert of_each_thread(7, "schedstat", tmp_path) == ["5 0 1"]


@pytest.mark.parametrize("reading", [cpu_seconds, context_switches])
def test_a_process_whose_threads_come_and_go_is_measured_to_the_end(churning: int, reading) -> None:
    until = time.monotonic() + 20.0
    start = context_switches([churning])
    while context_switches([churning]) < start + 2000 and time.monotonic() < until:
        assert reading([churning]) > 0


@pytest.mark.parametrize("reading", [cpu_seconds, context_switches, lambda pids: memory_of(pids[0])])
def test_a_process_that_is_gone_is_named(reading) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
        reading([process.pid])


def test_every_thread_that_lives_counts() -> None:
    before = cpu_seconds([os.getpid()])
    spun, read = threading.Barrier(3), threading.Event()

    def spin() -> None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        spun.wait(60.0)
        read.wait(60.0)

    threads = [threading.Thread(target=spin) for _ in range(2)]
    for thread in threads:
        thread.start()
    spun.wait(60.0)
    spent = cpu_seconds([os.getpid()]) - before
    read.set()
    for thread in threads:
        thread.join()
    assert spent >= 0.2
