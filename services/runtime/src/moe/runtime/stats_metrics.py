"""What moe.control.v1 Stats says, as Prometheus metrics: one source for both, whatever the part."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from moe.api.control.v1 import control_pb2
from moe.runtime import metrics
from moe.runtime.metrics import Reading


def readings(stats: control_pb2.StatsResponse) -> Iterator[Reading]:
    """The metrics of the parts that are set in the response."""
    if stats.HasField("expert"):
        yield from _expert(stats.expert)
    if stats.HasField("router"):
        yield from _router(stats.router)
    if stats.HasField("aggregator"):
        yield from _aggregator(stats.aggregator)


def _expert(stats: control_pb2.ExpertStats) -> Iterable[Reading]:
    return (
        _counter(metrics.EXPERT_ROWS, "Rows computed.", stats.rows),
        _counters(metrics.EXPERT_SLOTS, "Slots (row, expert) computed.", "expert", stats.slots_by_expert),
        _counter(metrics.EXPERT_BATCHES, "Kernel calls; rows / batches is the mean batch.", stats.batches),
        _counter(metrics.EXPERT_BUSY, "Seconds spent computing.", stats.busy_s),
        _gauge(metrics.EXPERT_QUEUED_ROWS, "Rows waiting.", stats.queued_rows),
        _counter(metrics.EXPERT_OVERLOADED, "Dispatches refused because the queue was full.", stats.overloaded),
        _counter(metrics.EXPERT_EXPIRED, "Dispatches dropped because their deadline had passed.", stats.expired),
        _counter(metrics.EXPERT_INVALID, "Dispatches that were malformed.", stats.invalid),
        _counter(metrics.EXPERT_DISPATCHES, "Dispatches taken from the queue to be computed.", stats.dispatches),
        _counter(metrics.EXPERT_QUEUE_WAIT, "Seconds that those waited in it, added up.", stats.queue_wait_s),
        _gauge(metrics.EXPERT_ROWS_PER_SECOND, "Rows a second while computing, of late.", stats.rows_per_s),
        Reading(metrics.EXPERT_KERNEL, "Kernel back end in use.", "gauge", _one(stats.kernel), "kernel"),
    )


def _router(stats: control_pb2.RouterStats) -> Iterable[Reading]:
    return (
        _gauge(metrics.ROUTER_RUNNING, "Requests running.", stats.running),
        _gauge(metrics.ROUTER_WAITING, "Requests waiting.", stats.waiting),
        _gauge(metrics.ROUTER_KV_USED, "Cache tokens in use.", stats.kv_tokens_used),
        _gauge(metrics.ROUTER_KV_TOTAL, "Cache tokens in all.", stats.kv_tokens_total),
        _counter(metrics.ROUTER_PROMPT_TOKENS, "Prompt tokens computed.", stats.prompt_tokens),
        _counter(metrics.ROUTER_GENERATED_TOKENS, "Tokens generated.", stats.generated_tokens),
        _counter(metrics.ROUTER_STEPS, "Engine steps.", stats.steps),
        _counter(metrics.ROUTER_RETRIED_PARTS, "Parts sent again.", stats.retried_parts),
        _counter(metrics.ROUTER_HEDGED_PARTS, "Parts sent to a second replica as well.", stats.hedged_parts),
        _counter(metrics.ROUTER_REDONE_CALLS, "Layer calls redone after an aggregator was lost.", stats.redone_calls),
        _counters(metrics.ROUTER_SLOTS, "Tokens sent to each expert, over layers.", "expert", stats.slots_by_expert),
        _counters(metrics.ROUTER_DEGRADATIONS, "Degradations that acted.", "degradation", stats.degradations),
        _counters(metrics.ROUTER_FINISHED, "Requests ended, by reason or status.", "reason", stats.finished),
    )


def _aggregator(stats: control_pb2.AggregatorStats) -> Iterable[Reading]:
    return (
        _counter(metrics.AGGREGATOR_COMBINED, "Layer calls answered.", stats.combined),
        _gauge(metrics.AGGREGATOR_OPEN, "Layer calls open.", stats.open),
        _counter(metrics.AGGREGATOR_DUPLICATES, "Parts that came twice or late.", stats.duplicates),
        _counter(metrics.AGGREGATOR_REFUSED, "Parts refused.", stats.refused),
        _counter(metrics.AGGREGATOR_MISSING, "Parts that an answer went without.", stats.missing),
        _counter(metrics.AGGREGATOR_FAILED, "Layer calls that failed.", stats.failed),
        _gauge(metrics.AGGREGATOR_SOURCES, "Collect streams open.", stats.sources),
    )


def _counter(name: str, text: str, value: float) -> Reading:
    return Reading(name, text, "counter", {"": value})


def _one(name: str) -> dict[str, float]:
    """The constant 1 by a name that is known."""
    return {name: 1} if name else {}


def _gauge(name: str, text: str, value: float) -> Reading:
    return Reading(name, text, "gauge", {"": value})


def _counters(name: str, text: str, label: str, values: Mapping[int, int] | Mapping[str, int]) -> Reading:
    return Reading(name, text, "counter", {str(key): value for key, value in sorted(values.items())}, label)


def reader(stats: Callable[[], control_pb2.StatsResponse]) -> Callable[[], Iterator[Reading]]:
    """The readings of a service's `stats` at the moment they are asked for."""
    return lambda: readings(stats())
