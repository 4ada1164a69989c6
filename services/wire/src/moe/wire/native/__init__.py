"""The wire in native code, outside the interpreter: services/wire/native behind moe.wire.port.

The same streams as moe.wire.grpcio, with which it mixes freely. ImportError where `moe_wire_native` is not built: then
grpcio is the wire (moe.wire.choice).
"""

from moe.wire.native.aggregator_server import AggregatorServer
from moe.wire.native.expert_server import ExpertServer
from moe.wire.native.router_client import RouterClient
from moe.wire.settings import WireSettings

OWN_COMBINER = True
"""It brings the combiner along: its ends take a combiner's limits instead of a combiner."""

__all__ = ["OWN_COMBINER", "AggregatorServer", "ExpertServer", "RouterClient", "WireSettings"]
