"""Which machine and versions, and what the machine can do at most."""

import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from moe.kernels.native import library, variants

_BYTES = 512 << 20
_SIDE = 2048


@dataclass(frozen=True)
class Limits:
    """read_gbps: GB/s of reading memory far beyond the caches. gflops: of torch's float32 product of 2048 cubed."""

    read_gbps: float
    gflops: float


def describe() -> str:
    """Processor, instruction set in use, versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, native {variants()[-1]}, torch {torch.__version__}, transformers {transformers.__version__}"


def measure_limits(threads: int) -> Limits:
    """The best of several tries each."""
    memory = torch.zeros(_BYTES, dtype=torch.uint8)
    read = library().function("moe_read_memory")
    bandwidth = _BYTES / min(_seconds(lambda: read(memory.data_ptr(), _BYTES, threads)) for _ in range(7)) / 1e9
    square = torch.randn(_SIDE, _SIDE)
    return Limits(bandwidth, 2 * _SIDE**3 / min(_seconds(lambda: square @ square) for _ in range(3)) / 1e9)


def _seconds(call) -> float:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
