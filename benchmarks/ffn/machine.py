"""Which machine and versions, and what the machine can do at most."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from moe.kernels.native import library, variants

_BYTES = 512 << 20
_SIDE = 2048


@dataclass(frozen=True)
class Limits:
    """read_gbps: GB/s of reading memory far beyond the caches. gflops: of torch's product of 2048 cubed, the faster of
    float32 and bfloat16."""

    read_gbps: float
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
    return f"{model}, load {os.getloadavg()[0]:.1f}, native {variants()[-1]}, {versions}"


def measure_limits(threads: int, clock: Callable[[], float]) -> Limits:
    """The best of several tries each, by a clock in seconds."""
    memory = torch.zeros(_BYTES, dtype=torch.uint8)
    read = library().function("moe_read_memory")
    bandwidth = _BYTES / min(_seconds(lambda: read(memory.data_ptr(), _BYTES, threads), clock) for _ in range(7)) / 1e9
    squares = [torch.randn(_SIDE, _SIDE).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    fastest = min(_seconds(lambda each=each: each @ each, clock) for _ in range(3) for each in squares)
    return Limits(bandwidth, 2 * _SIDE**3 / fastest / 1e9)


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start
