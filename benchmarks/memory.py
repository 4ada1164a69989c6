"""Memory of processes, from /proc: resident (RSS), and proportional (PSS), where a shared page counts once for all."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """KiB of one process, as the kernel counts them."""

    rss_kib: int
    pss_kib: int


def memory_of(pid: int) -> Memory:
    """Now. Raises ProcessLookupError for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"process {pid} has ended while it was measured") from None
    fields = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    return Memory(int(fields["Rss"].split()[0]), int(fields["Pss"].split()[0]))


def pss_bytes(pids: Iterable[int]) -> int:
    """Proportional set size of all together."""
    return sum(memory_of(pid).pss_kib for pid in pids) * 1024
