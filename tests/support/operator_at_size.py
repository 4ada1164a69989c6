"""What a model's objects cost the API server and the operator: a test asserts it, a benchmark prints it."""

import time
from dataclasses import dataclass
from pathlib import Path

from support.cluster.client import Namespace, wait_until
from support.cluster_models import idle_model, operator, put_package, until_condition
from support.tiny_package import write_package

WINDOW_S = 20.0
"""In which an idle operator's requests are counted."""

_MIB = 1024 * 1024
_REQUESTS = "moe_operator_requests_total"


@dataclass(frozen=True)
class Cost:
    """Of a model whose pods are not started. right_after_s: from apply until all its objects are as wished."""

    experts: int
    right_after_s: float
    writes_per_object: float
    resident_mib: float
    idle_requests_per_s: float


def measure(namespace: Namespace, folder: Path, experts: int) -> Cost:
    """With an operator beside the cluster. namespace: empty; folder: for the package and the operator's log."""
    put_package(namespace, write_package(folder / "wide", moe_layers={0: experts}))
    with operator(namespace, folder) as acting:
        wait_until(acting.leading, "it does not act", 60, every_s=0.3)
        began = time.monotonic()
        namespace.apply(idle_model())
        until_condition(namespace, "Progressing", "AsWished", patience_s=280)
        took_s = time.monotonic() - began
        writes = acting.settled()
        before, counted_from = acting.metrics(), time.monotonic()
        wait_until(lambda: time.monotonic() - counted_from > WINDOW_S, "time stands still", WINDOW_S + 30)
        after, window_s = acting.metrics(), time.monotonic() - counted_from
    return Cost(
        experts,
        right_after_s=took_s,
        writes_per_object=writes / objects_of(experts),
        resident_mib=after["process_resident_memory_bytes"] / _MIB,
        idle_requests_per_s=(after[_REQUESTS] - before[_REQUESTS]) / window_s,
    )


def objects_of(experts: int) -> int:
    """MoEExpert, Deployment, Service and disruption budget of each expert, and ten for all."""
    return 4 * experts + 10
