"""What a service has to do with the operating system's process it runs in."""

import ctypes
import gc
import os
import secrets
import signal
import sys
from pathlib import Path

from moe.runtime.errors import StartupError

_PR_SET_PDEATHSIG = 1
_KIBIBYTE = 1024


def new_instance_id() -> str:
    """An identity for a process, new at each start: 16 hexadecimal digits of the system's randomness."""
    return secrets.token_hex(8)


def die_with_parent(parent: int | None = None) -> None:
    """Has the kernel kill this process when its parent's thread ends (prctl(2), PR_SET_PDEATHSIG). Linux only.

    parent: the pid that should be the parent; when it is gone already, this process ends at once, because the
    signal is only sent for a death after the call. Raises StartupError where the kernel has no such call.
    """
    if sys.platform != "linux":
        raise StartupError(
            "a process can only be tied to its parent's life on Linux; start it without --die-with-parent"
        )
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise StartupError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_threads(threads: int) -> None:
    """Sets how many threads torch computes with in this process. Raises StartupError below 1."""
    if threads < 1:
        raise StartupError(f"threads must be at least 1, got {threads}")
    import torch

    torch.set_num_threads(threads)


def settle_memory() -> None:
    """To be called once everything that stays is loaded: leaves it out of the garbage collector's rounds for good, and
    gives the heap's free pages back to the system (where the C library has malloc_trim)."""
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def available_cores() -> int:
    """Cores that this process may run on (its affinity mask), at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident_bytes() -> int:
    """Resident memory of this process in bytes, shared pages included; the peak so far where /proc is missing."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * _KIBIBYTE
