"""CPU time of processes, exact to the nanosecond where the kernel keeps it.

/proc/PID/stat counts in ticks of 10 ms, which is the length of a hundred layer calls; schedstat counts nanoseconds, a
thread at a time. A thread that ends between two readings takes its share along: measure processes whose threads live.
"""

from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(pids: Iterable[int]) -> float:
    """Seconds that all threads of the processes have run so far. Raises ProcessLookupError for one that is gone."""
    return sum(_process_seconds(pid) for pid in pids)


def _process_seconds(pid: int) -> float:
    folder = Path(f"/proc/{pid}/task")
    if not folder.is_dir():
        raise ProcessLookupError(f"process {pid} has ended while it was measured")
    nanoseconds = 0
    for task in folder.iterdir():
        try:
            nanoseconds += int((task / "schedstat").read_text(encoding="ascii").split()[0])
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended since the listing
            continue
    return nanoseconds / 1e9
