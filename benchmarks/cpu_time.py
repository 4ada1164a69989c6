"""CPU time of processes, exact to the nanosecond where the kernel keeps it, and context switches.

/proc/PID/stat counts in ticks of 10 ms, which is the length of a hundred layer calls; schedstat counts nanoseconds, a
thread at a time. A thread that ends between two readings takes its share along: measure processes whose threads live.
"""

from collections.abc import Iterable

from benchmarks.threads import of_each_thread


def cpu_seconds(pids: Iterable[int]) -> float:
    """Seconds that all threads of the processes have run so far. Raises ProcessLookupError for one that is gone."""
    return sum(_process_seconds(pid) for pid in pids)


def _process_seconds(pid: int) -> float:
    return sum(int(text.split()[0]) for text in of_each_thread(pid, "schedstat")) / 1e9


def context_switches(pids: Iterable[int]) -> int:
    """That all threads of the processes have made so far, given up and taken away. Raises as `cpu_seconds`."""
    total = 0
    for pid in pids:
        for text in of_each_thread(pid, "status"):
            total += sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)
    return total
