"""Prometheus metrics: the names that leave the process, and the page they are read from.

Every name begins with `moe_` and the part. Each stands here once; parts make their metrics with these constants, in a
registry of their process. Counters that a part keeps anyway (moe.control.v1 Stats) are read at scrape time by
`FromStats`, so that nothing is counted twice on the hot path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from moe.runtime.errors import StartupError
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

EXPERT_ROWS = "moe_expert_rows_total"
EXPERT_SLOTS = "moe_expert_slots_total"
EXPERT_BATCHES = "moe_expert_batches_total"
EXPERT_BUSY = "moe_expert_busy_seconds_total"
EXPERT_QUEUED_ROWS = "moe_expert_queued_rows"
EXPERT_OVERLOADED = "moe_expert_overloaded_total"
EXPERT_EXPIRED = "moe_expert_expired_total"
EXPERT_INVALID = "moe_expert_invalid_total"
EXPERT_DISPATCHES = "moe_expert_dispatches_total"
EXPERT_QUEUE_WAIT = "moe_expert_queue_wait_seconds_total"
EXPERT_ROWS_PER_SECOND = "moe_expert_rows_per_second"
EXPERT_KERNEL = "moe_expert_kernel_info"

ROUTER_RUNNING = "moe_router_running_requests"
ROUTER_WAITING = "moe_router_waiting_requests"
ROUTER_KV_USED = "moe_router_kv_tokens_used"
ROUTER_KV_TOTAL = "moe_router_kv_tokens_capacity"
ROUTER_PROMPT_TOKENS = "moe_router_prompt_tokens_total"
ROUTER_GENERATED_TOKENS = "moe_router_generated_tokens_total"
ROUTER_STEPS = "moe_router_steps_total"
ROUTER_RETRIED_PARTS = "moe_router_retried_parts_total"
ROUTER_HEDGED_PARTS = "moe_router_hedged_parts_total"
ROUTER_REDONE_CALLS = "moe_router_redone_calls_total"
ROUTER_SLOTS = "moe_router_slots_total"
ROUTER_DEGRADATIONS = "moe_router_degradations_total"
ROUTER_FINISHED = "moe_router_finished_requests_total"

AGGREGATOR_COMBINED = "moe_aggregator_combined_total"
AGGREGATOR_OPEN = "moe_aggregator_open_calls"
AGGREGATOR_DUPLICATES = "moe_aggregator_duplicates_total"
AGGREGATOR_REFUSED = "moe_aggregator_refused_total"
AGGREGATOR_MISSING = "moe_aggregator_missing_total"
AGGREGATOR_FAILED = "moe_aggregator_failed_total"
AGGREGATOR_SOURCES = "moe_aggregator_sources"

DISCOVERY_LOST = "moe_discovery_lost"
DISCOVERY_VERSION = "moe_discovery_version"
DISCOVERY_REPLICAS = "moe_discovery_replicas"


@dataclass(frozen=True)
class Reading:
    """One metric at one moment. values: by the value of `label`; without a label, by the empty string."""

    name: str
    help: str
    kind: Literal["counter", "gauge"]
    values: Mapping[str, float]
    label: str = ""


class FromStats(Collector):
    """Reads a part's figures when Prometheus asks. read: cheap, safe to call from the page's thread."""

    def __init__(self, read: Callable[[], Iterable[Reading]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """One family per reading."""
        for reading in self._read():
            labels = [reading.label] if reading.label else []
            family: CounterMetricFamily | GaugeMetricFamily
            if reading.kind == "counter":
                family = CounterMetricFamily(reading.name, reading.help, labels=labels)
            else:
                family = GaugeMetricFamily(reading.name, reading.help, labels=labels)
            for value, number in reading.values.items():
                family.add_metric([value] if reading.label else [], number)
            yield family


def new_registry() -> CollectorRegistry:
    """A registry with the process's own figures (memory, processor time, open files)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def serve_page(registry: CollectorRegistry, host: str, port: int) -> Callable[[], None]:
    """Serves the registry over HTTP; returns what ends it. Raises StartupError when the address can't be had."""
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise StartupError(f"metrics page on {host}:{port}: {error.strerror or error}; see --metrics-port") from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
