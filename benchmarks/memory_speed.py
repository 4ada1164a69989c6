"""How fast memory is read at this moment: on a machine whose memory others share it moves by half within minutes."""

import time

from moe.kernels.native import unavailable

from benchmarks.ffn.machine import buffer, read_gbps

_BYTES = 256 << 20


def memory_gbps(threads: int) -> float | None:
    """GB/s of so many threads over memory far beyond the caches, the best of several tries within a moment.

    None where the kernels, whose loop reads it, are not built.
    """
    return None if unavailable() else read_gbps(buffer(_BYTES, huge=True), threads, time.perf_counter)
