"""Which machine and versions, and what the machine can do at most."""

import mmap
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from moe.kernels.native import library, variants
from torch import Tensor

from benchmarks.ffn.shapes import Routing
from benchmarks.machine import busy_cores

HUGE_PAGE = 2 << 20
_BYTES = 512 << 20
_STRETCH = 64 << 20
_SIDE = 2048


@dataclass(frozen=True)
class Limits:
    """read_gbps: GB/s of reading memory far beyond the caches, in huge pages where the system gives them, as packed
    weights are; small_pages_gbps: in pages of 4 KiB, whose tables cost time. gflops: of torch's product of 2048 cubed,
    the faster of float32 and bfloat16."""

    read_gbps: float
    small_pages_gbps: float
    gflops: float

    def roofline_s(self, read_bytes: float, operations: float) -> tuple[float, str]:
        """The least time that a call can take, and which limit it is bound by."""
        memory, arithmetic = read_bytes / self.read_gbps / 1e9, operations / self.gflops / 1e9
        return max((memory, "memory"), (arithmetic, "arithmetic"))


def describe() -> str:
    """Processor, instruction set in use, versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{model}, {busy_cores():.2f} cores busy with others, native {variants()[-1]}, {versions}"


def measure_limits(threads: int, clock: Callable[[], float]) -> Limits:
    """The best of several tries each, by a clock in seconds."""
    huge, small = (read_gbps(buffer(_BYTES, huge=huge), threads, clock) for huge in (True, False))
    squares = [torch.randn(_SIDE, _SIDE).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    fastest = min(_seconds(lambda each=each: each @ each, clock) for _ in range(3) for each in squares)
    return Limits(max(huge, small), small, 2 * _SIDE**3 / fastest / 1e9)


class Reader:
    """A `Timed` that reads memory in huge pages, the next stretch of it in each call.

    In the turns of contestants it tells the read limit of their minutes, as memory's speed drifts.
    """

    stretch = _STRETCH
    """Bytes of a call; what lies between two calls with the same ones is far beyond the caches."""

    def __init__(self, threads: int, clock: Callable[[], float]) -> None:
        self._memory, self._threads, self._clock, self._place = buffer(_BYTES, huge=True), threads, clock, 0
        self._read = library().function("moe_read_memory")

    def __call__(self, routing: Routing) -> float:
        """Seconds that reading the next stretch took; the routing says nothing to it."""
        address = self._memory.data_ptr() + self._place
        self._place = (self._place + _STRETCH) % _BYTES
        return _seconds(lambda: self._read(address, _STRETCH, self._threads), self._clock)


def buffer(size: int, *, huge: bool) -> Tensor:
    """uint8 [size] of memory that was written to, from a huge page's start; in huge pages if so asked, else in none."""
    # Python's default, shared memory, is a file's, and has huge pages by other rules.
    area = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # advice: a system without huge pages serves from small ones
        area.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    first = -whole.data_ptr() % HUGE_PAGE
    return whole[first : first + size].fill_(1)


def read_gbps(memory: Tensor, threads: int, clock: Callable[[], float]) -> float:
    """GB/s at which so many threads read this memory, the best of several tries."""
    read, size = library().function("moe_read_memory"), len(memory)
    return size / min(_seconds(lambda: read(memory.data_ptr(), size, threads), clock) for _ in range(7)) / 1e9


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start
