"""An expert or aggregator process that computes nothing: what is left is the price of the hop.

    python -m benchmarks.null_part expert --wire grpcio --listen unix:/tmp/e0.sock --experts 0,1 --hidden 1024
    python -m benchmarks.null_part aggregator --wire grpcio --listen unix:/tmp/a.sock --collect unix:/tmp/e0.sock

The server around the wire is the services' own. An expert answers a part with the rows that it got: inside the
native wire, as an expert computes them there, or on the compute thread.
"""

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from moe.aggregator.hosting import combiner_for
from moe.api.control.v1 import control_pb2
from moe.runtime.front import Front
from moe.runtime.process import new_instance_id, set_threads, settle_memory
from moe.runtime.server import Hook, ServerSettings, Service, run
from moe.wire.choice import Wire
from moe.wire.ends import AggregatorEnd
from moe.wire.port import ExpertLimits, ExpertWire
from moe.wire.settings import CombinerLimits, WireSettings

from benchmarks.wires import WIRES, wire

_EXPERT, _AGGREGATOR = "moe.expert.v1.ExpertService", "moe.aggregator.v1.AggregatorService"


def answer_forever(wire: ExpertWire, stopped: threading.Event) -> None:
    """The compute thread: each part is answered with its own rows, which is a copy that an expert also has to send."""
    while not stopped.is_set():
        batch = wire.next_batch(0.2)
        if batch is not None:
            wire.finish(batch, [item.rows.to(item.partial_dtype) for item in batch.items])


def _expert(actors: Wire, chosen: argparse.Namespace) -> Service:
    held = frozenset(map(int, chosen.experts.split(",")))
    limits = ExpertLimits(chosen.hidden, torch.bfloat16, {0: held})
    instance = new_instance_id()
    server = actors.expert(limits, instance, WireSettings())
    if chosen.wire == "native":
        from moe_wire_native import echo_kernel

        server.compute_natively({0: (echo_kernel(), chosen.hidden * limits.dtype.itemsize)}, 1)
    stopped = threading.Event()
    thread = threading.Thread(target=answer_forever, args=(server, stopped), daemon=True)

    async def start() -> None:
        settle_memory()
        thread.start()

    async def drain() -> None:
        server.drain()
        await server.drained()
        stopped.set()

    return _service("expert", _EXPERT, server.register, start, drain, instance, lambda: server.front)


def _aggregator(actors: Wire, chosen: argparse.Namespace) -> Service:
    instance = new_instance_id()
    made: list[AggregatorEnd] = []

    def register(server: Any) -> None:
        combiner = combiner_for(actors, CombinerLimits())
        aggregator = actors.aggregator(combiner, "agg-0", instance, WireSettings())
        aggregator.register(server)
        aggregator.set_experts(chosen.collect.split(","))
        made.append(aggregator)

    async def drain() -> None:
        for aggregator in made:
            await aggregator.drained()

    return _service("agg-0", _AGGREGATOR, register, None, drain, instance, lambda: made[0].front)


def _service(
    name: str,
    full_name: str,
    register: Callable[[Any], None],
    start: Hook | None,
    drain: Hook,
    instance: str,
    front: Callable[[], Front | None],
) -> Service:
    return Service(
        name,
        (full_name,),
        register,
        control_pb2.DescribeResponse,
        control_pb2.StatsResponse,
        startup=start,
        on_drain=drain,
        instance=instance,
        front=front,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.null_part")
    parser.add_argument("role", choices=("expert", "aggregator"))
    parser.add_argument("--wire", choices=WIRES, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--experts", default="0", help="ids, with expert")
    parser.add_argument("--hidden", type=int, default=1024, help="with expert")
    parser.add_argument("--collect", default="", help="expert endpoints, with aggregator")
    chosen = parser.parse_args(argv)
    set_threads(1)
    actors = wire(chosen.wire)
    service = _expert(actors, chosen) if chosen.role == "expert" else _aggregator(actors, chosen)
    return run(service, ServerSettings(chosen.listen, drain_timeout_s=1.0))


if __name__ == "__main__":
    sys.exit(main())
