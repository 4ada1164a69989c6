"""The operating system's process that a service runs in."""

import os
import subprocess
import sys

import pytest
import torch
from moe.runtime import process
from moe.runtime.errors import StartupError

ORPHAN = """
import os, signal, sys
child = os.fork()
if child == 0:
    from moe.runtime.process import die_with_parent
    die_with_parent(int(sys.argv[1]) if len(sys.argv) > 1 else None)
    print(os.getpid(), flush=True)
    signal.pause()
os.waitpid(child, 0)
"""


def ended(pid, timeout_s=10):
    """Whether the process ends in time, seen through a pidfd."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def test_a_child_dies_when_its_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
        assert ended(child)


def test_a_child_whose_parent_is_gone_already_ends_at_once():
    run = subprocess.run([sys.executable, "-c", ORPHAN, "1"], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == ""


def test_this_process_uses_a_believable_amount_of_memory():
    assert 10e6 < process.resident_bytes() < 100e9


def test_memory_that_is_written_counts_as_resident():
    before = process.resident_bytes()
    block = bytearray(os.urandom(1024)) * (64 * 1024)
    assert process.resident_bytes() - before > 0.9 * len(block)


def test_threads_are_set_for_torch():
    before = torch.get_num_threads()
    try:
        process.set_threads(3)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_less_than_one_thread_is_refused():
    with pytest.raises(StartupError, match="at least 1, got 0"):
        process.set_threads(0)


def test_cores_are_those_of_the_affinity_mask():
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert process.available_cores() == 1
    finally:
        os.sched_setaffinity(0, mask)


def test_instances_differ_and_are_sixteen_hexadecimal_digits():
    one, two = process.new_instance_id(), process.new_instance_id()
    assert one != two
    assert len(bytes.fromhex(one)) == 8
