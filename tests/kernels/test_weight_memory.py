"""Where packed weights lie: in blocks that ask for huge pages, and given back when they are no longer wanted."""

import re
from pathlib import Path

import torch
from moe.kernels.linear.native_backend import NativeLinear

_SYSTEM_HAS_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage").exists()
_MIB = 1 << 20


def _resident() -> int:
    """Bytes."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match
    return int(match[1]) << 10


def _mappings_that_ask_for_huge_pages() -> int:
    """Bytes of address space."""
    total = size = 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"Size:\s+(\d+) kB", line):
            size = int(match[1]) << 10
        elif line.startswith("VmFlags:") and " hg" in line:
            total += size
    return total


def test_large_weights_ask_for_huge_pages() -> None:
    before = _mappings_that_ask_for_huge_pages()
    linear = NativeLinear(torch.zeros(4096, 8192, dtype=torch.bfloat16), None)
    asked = _mappings_that_ask_for_huge_pages() - before
    assert asked >= linear.bytes if _SYSTEM_HAS_HUGE_PAGES else asked == 0


def test_weights_of_one_block_stop_being_resident_one_by_one() -> None:
    linears = [NativeLinear(torch.ones(1024, 4096, dtype=torch.bfloat16), None) for _ in range(16)]
    full = _resident()
    survivor = linears[7]
    linears.clear()
    assert full - _resident() >= 14 * 8 * _MIB
    rows = torch.ones(3, 4096, dtype=torch.bfloat16)
    assert torch.equal(survivor(rows), torch.full((3, 1024), 4096.0, dtype=torch.bfloat16))


def test_a_weight_that_took_the_place_of_another_is_right() -> None:
    for value in (1.0, 2.0, 3.0):
        linear = NativeLinear(torch.full((256, 512), value), None)
        assert torch.equal(linear(torch.ones(1, 512)), torch.full((1, 256), 512 * value))
