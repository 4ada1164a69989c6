"""The router's figures as moe.control.v1 has them."""

from moe.api.control.v1 import control_pb2
from moe.router.engine import Engine
from moe.router.layer_call import CallCounters
from moe.router.scheduler import ScheduleLimits
from moe.wire.combining import CombinerStats


def router_message(engine: Engine, calls: CallCounters, schedule: ScheduleLimits) -> control_pb2.RouterStats:
    """Counters since the start and gauges of now."""
    running, waiting, kv_tokens = engine.load()
    tally = engine.tally
    return control_pb2.RouterStats(
        running=running,
        waiting=waiting,
        kv_tokens_used=kv_tokens,
        kv_tokens_total=schedule.kv_tokens,
        prompt_tokens=tally.prompt_tokens,
        generated_tokens=tally.generated_tokens,
        steps=tally.steps,
        retried_parts=calls.retried_parts,
        redone_calls=calls.redone_calls,
        hedged_parts=calls.hedged_parts,
        slots_by_expert=engine.slots_by_expert(),
        degradations=dict(tally.degradations),
        finished=dict(tally.finished),
    )


def aggregator_message(stats: CombinerStats) -> control_pb2.AggregatorStats:
    """Figures of the combiner inside the router."""
    return control_pb2.AggregatorStats(
        combined=stats.combined,
        open=stats.open,
        duplicates=stats.duplicates,
        refused=stats.refused,
        missing=stats.missing,
        failed=stats.failed,
    )
