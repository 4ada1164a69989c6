"""From the figures that parts tell of themselves to the rates and shares that a table shows. Pure.

A rate is the difference of two samples of a counter over the time between them. A share is of all slots that routers
have sent since they started, so it goes on when an expert restarts; replicas divide their group's by what each computed
since its own start.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moe.api.control.v1 import control_pb2
from moe.cli.supervise.samples import Sample
from moe.cli.supervise.state_file import ProcessRecord

Ends = tuple[Sample, Sample]
"""The oldest and the newest sample of one process."""


@dataclass(frozen=True)
class Row:
    """One process in the table; None where it does not apply or is not known.

    rows_per_s: of an expert, rows computed; of an aggregator, layer calls answered. share: an expert's part of all
    slots. queue: of an expert, rows waiting; of a router, requests waiting; of an aggregator, calls open.
    wait_s: of an expert, how long a dispatch waited in the queue on average; None when none came. busy: part of the
    time spent computing. kernel: of an expert, its back end.
    """

    process: ProcessRecord
    rows_per_s: float | None = None
    share: float | None = None
    queue: int | None = None
    wait_s: float | None = None
    busy: float | None = None
    resident_bytes: int | None = None
    kernel: str | None = None

    def as_json(self) -> dict[str, object]:
        """Its fields for programs."""
        process = self.process
        return {
            "name": process.name,
            "role": process.role,
            "state": process.state,
            "pid": process.pid,
            "restarts": process.restarts,
            "endpoint": process.endpoint,
            "experts": list(process.experts),
            "rows_per_s": self.rows_per_s,
            "share": self.share,
            "queue": self.queue,
            "wait_s": self.wait_s,
            "busy": self.busy,
            "resident_bytes": self.resident_bytes,
            "kernel": self.kernel,
            "reason": process.reason,
        }


@dataclass(frozen=True)
class Summary:
    """The deployment as a whole: tokens generated a second, requests, memory, the experts' kernels by name."""

    tokens_per_s: float = 0.0
    running: int = 0
    waiting: int = 0
    resident_bytes: int = 0
    kernels: tuple[str, ...] = ()


def rows(processes: Sequence[ProcessRecord], samples: Mapping[str, Ends]) -> list[Row]:
    """One row per process, in their order."""
    shares = _shares(processes, {name: last.stats for name, (_, last) in samples.items()})
    return [_row(process, samples.get(process.name), shares.get(process.name, 0.0)) for process in processes]


def summary(samples: Mapping[str, Ends]) -> Summary:
    """Sums over all routers, and the memory of all processes."""
    routers = [(first, last) for first, last in samples.values() if last.stats.HasField("router")]
    return Summary(
        tokens_per_s=sum(
            _rate(last.stats.router.generated_tokens - first.stats.router.generated_tokens, first, last)
            for first, last in routers
        ),
        running=sum(last.stats.router.running for _, last in routers),
        waiting=sum(last.stats.router.waiting for _, last in routers),
        resident_bytes=sum(last.stats.resident_bytes for _, last in samples.values()),
        kernels=tuple(sorted({last.stats.expert.kernel for _, last in samples.values()} - {""})),
    )


def _row(process: ProcessRecord, ends: Ends | None, share: float) -> Row:
    if ends is None:
        return Row(process)
    first, last = ends
    resident = last.stats.resident_bytes
    if last.stats.HasField("expert"):
        then, now = first.stats.expert, last.stats.expert
        return Row(
            process,
            rows_per_s=_rate(now.rows - then.rows, first, last),
            share=share,
            queue=now.queued_rows,
            wait_s=_wait_s(then, now),
            busy=min(1.0, _rate(now.busy_s - then.busy_s, first, last)),
            resident_bytes=resident,
            kernel=now.kernel or None,
        )
    if last.stats.HasField("router"):
        return Row(process, queue=last.stats.router.waiting, resident_bytes=resident)
    then_combined = first.stats.aggregator.combined
    per_s = _rate(last.stats.aggregator.combined - then_combined, first, last)
    return Row(process, rows_per_s=per_s, queue=last.stats.aggregator.open, resident_bytes=resident)


def _wait_s(then: control_pb2.ExpertStats, now: control_pb2.ExpertStats) -> float | None:
    """Seconds in the queue for each dispatch taken in between."""
    taken = now.dispatches - then.dispatches
    return max(0.0, now.queue_wait_s - then.queue_wait_s) / taken if taken > 0 else None


def _shares(processes: Sequence[ProcessRecord], stats: Mapping[str, control_pb2.StatsResponse]) -> dict[str, float]:
    """Each expert process's part of all slots, by name; as computed since each one's start where no router answers."""
    computed = {name: sum(each.expert.slots_by_expert.values()) for name, each in stats.items()}
    chosen: Counter[int] = Counter()
    for each in stats.values():
        chosen.update(each.router.slots_by_expert)
    total = chosen.total()
    if not total:
        everything = sum(computed.values())
        return {name: slots / everything for name, slots in computed.items()} if everything else {}
    replicas: dict[str, list[str]] = {}
    for process in processes:
        if process.name in stats and process.experts:
            replicas.setdefault(process.group, []).append(process.name)
    shares: dict[str, float] = {}
    for process in processes:
        if process.name in stats and process.experts:
            names = replicas[process.group]
            together = sum(computed[name] for name in names)
            part = computed[process.name] / together if together else 1 / len(names)
            shares[process.name] = part * sum(chosen[expert] for expert in process.experts) / total
    return shares


def _rate(difference: float, first: Sample, last: Sample) -> float:
    """A second. Zero for one sample alone, and after a restart in between (a counter that fell)."""
    seconds = last.at - first.at
    return max(0.0, difference) / seconds if seconds > 0 else 0.0
