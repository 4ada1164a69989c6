"""The last figures that each part told of itself, from which rates are made (moe.cli.figures)."""

from collections import deque
from dataclasses import dataclass, field

from moe.api.control.v1 import control_pb2

HISTORY = 4
"""Samples kept of each process: at one a second, rates are over the last three seconds."""


@dataclass(frozen=True)
class Sample:
    """A part's figures at a moment of the monotonic clock."""

    at: float
    stats: control_pb2.StatsResponse


@dataclass
class Samples:
    """Samples by process name, oldest first. wires: what each process says carries its layer calls."""

    by_name: dict[str, deque[Sample]] = field(default_factory=dict)
    wires: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, sample: Sample) -> None:
        """Keeps a sample."""
        self.by_name.setdefault(name, deque(maxlen=HISTORY)).append(sample)

    def forget(self, name: str) -> None:
        """Drops a process's samples: after a restart its counters begin at zero."""
        self.by_name.pop(name, None)

    def ends(self, name: str) -> tuple[Sample, Sample] | None:
        """The oldest and the newest sample of a process; the same one twice when there is only one."""
        kept = self.by_name.get(name)
        return (kept[0], kept[-1]) if kept else None
