"""The wire over grpcio: the obvious implementation, always there.

One asyncio loop carries all streams of a process; the engine's and the compute thread meet it through the port.
"""

from moe.wire.grpcio.aggregator_server import AggregatorServer
from moe.wire.grpcio.expert_server import ExpertServer
from moe.wire.grpcio.loop_thread import LoopThread, shared_loop
from moe.wire.grpcio.router_client import RouterClient
from moe.wire.settings import WireSettings

OWN_COMBINER = False
"""Its ends take a combiner (moe.wire.combining.Combining)."""

__all__ = [
    "OWN_COMBINER",
    "AggregatorServer",
    "ExpertServer",
    "LoopThread",
    "RouterClient",
    "WireSettings",
    "shared_loop",
]
