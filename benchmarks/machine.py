"""What a table was measured on: CPU, cores, memory, what else it does, versions. Read from /proc, not configured."""

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_QUIET_CORES = 0.2
_LISTENED_S = 2.0
_VECTOR_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "bf16")


@dataclass(frozen=True)
class Machine:
    """cores: that this process may run on. vector: instruction sets that decide about kernels. memory_gib: of the
    machine. busy: cores that others kept busy for two seconds before the run began; above 0.2 the table is suspect.
    """

    date: str
    cpu: str
    cores: int
    vector: tuple[str, ...]
    memory_gib: float
    busy: float
    system: str
    versions: dict[str, str]

    @property
    def quiet(self) -> bool:
        """Whether figures of this run can be trusted."""
        return self.busy <= _QUIET_CORES

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people, one fact a line."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        noise = "" if self.quiet else ": TAKEN UNDER LOAD, absolute figures mean little"
        return [
            f"date      {self.date}",
            f"cpu       {self.cpu}, {self.cores} cores, {' '.join(self.vector) or 'no vector extensions that matter'}",
            f"memory    {self.memory_gib:.0f} GiB",
            f"others    kept {self.busy:.2f} cores busy when the run began{noise}",
            f"system    {self.system}",
            f"versions  {versions}",
        ]


def this_machine(libraries: Iterable[str] = ("torch", "transformers", "grpcio")) -> Machine:
    """This machine now."""
    cpu, flags = _cpu()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        vector=tuple(flag for flag in _VECTOR_FLAGS if flag in flags),
        memory_gib=memory,
        busy=busy_cores(),
        system=platform.platform(),
        versions={"python": platform.python_version(), **{name: installed(name) for name in libraries}},
    )


def busy_cores(seconds: float = _LISTENED_S) -> float:
    """Cores that work, or that a hypervisor gives to others, while this process sleeps for that long. The load average
    would tell of the minute before, in which the last benchmark ran."""
    before = _work()
    time.sleep(seconds)
    return max(0.0, _work() - before) / seconds


def _work() -> float:
    """Processor seconds of all cores since the machine started, without idle and waiting ones (proc(5), /proc/stat)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    idle, waiting = ticks[3], ticks[4]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def installed(library: str) -> str:
    """Its version here, or that it isn't installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> tuple[str, frozenset[str]]:
    """Model name with family and model numbers, and the flags that the kernel lists for the first core."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    name = fields.get("model name", platform.machine())
    if "cpu family" in fields:
        name += f" (family {fields['cpu family']}, model {fields.get('model', '?')})"
    return name, frozenset((fields.get("flags") or fields.get("Features") or "").split())
