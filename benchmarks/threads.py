"""What /proc tells of a process's threads, one after the other. Threads end while they are looked through: that is
usual, and a thread that is gone has nothing to tell. A process that is gone is an error.
"""

from pathlib import Path

PROC = Path("/proc")


def of_each_thread(pid: int, name: str, proc: Path = PROC) -> list[str]:
    """The file of a name (`schedstat`, `status`) of every thread of a process that lives.

    Raises ProcessLookupError for a process that is gone.
    """
    tasks = proc / str(pid) / "task"
    try:
        listed = list(tasks.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"process {pid} has ended while it was measured") from None
    texts = []
    for task in listed:
        try:
            texts.append((task / name).read_text(encoding="ascii", errors="replace"))
        except (FileNotFoundError, ProcessLookupError):  # before it was opened, and between that and reading it
            continue
    return texts
