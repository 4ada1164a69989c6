"""How much memory this process may still take, so that a cache too large is refused by size and not killed later.

And memory that is taken when it is first written: a cache for many long sequences costs what the short ones use.
"""

import math
import mmap
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_bytes() -> int | None:
    """Bytes that can still be had on this machine and in this control group; None where neither can be read."""
    bounds = [bound for bound in (_machine(), _control_group()) if bound is not None]
    return min(bounds, default=None)


def untouched_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages become resident one by one, when they are first written; page-aligned.

    torch.zeros would write them all. Raises MemoryError when the address space can't be had.
    """
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    try:
        pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{readable(count * dtype.itemsize)} for a slab of shape {list(shape)}: {error}") from error
    return torch.frombuffer(pages, dtype=dtype, count=count).view(*shape)


def _machine() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _control_group() -> int | None:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)


def readable(count: int) -> str:
    """A size as people read it."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"
