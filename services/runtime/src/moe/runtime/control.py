"""moe.control.v1 for any service: who it is, how it does, and how to end it."""

import time
from collections.abc import Callable

from moe.api.control.v1 import control_pb2, control_pb2_grpc
from moe.runtime.process import resident_bytes
from moe.runtime.version import moe_version

Describe = Callable[[], control_pb2.DescribeResponse]
Stats = Callable[[], control_pb2.StatsResponse]


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """Answers Describe, Stats and Drain; adds what every process has to what the service itself says.

    describe, stats: the service's own answers, cheap and safe to call from the server's loop; version, instance,
    uptime and resident memory are filled in here.
    """

    def __init__(self, describe: Describe, stats: Stats, drain: Callable[[], None], *, instance: str) -> None:
        self._describe = describe
        self._stats = stats
        self._drain = drain
        self._instance = instance
        self._started = time.monotonic()

    async def Describe(  # noqa: N802 - gRPC's name
        self, request: control_pb2.DescribeRequest, context: object
    ) -> control_pb2.DescribeResponse:
        """Identity and configuration; constant from start to end."""
        answer = control_pb2.DescribeResponse()
        answer.CopyFrom(self._describe())
        answer.version = moe_version()
        answer.instance = self._instance
        return answer

    async def Stats(  # noqa: N802 - gRPC's name
        self, request: control_pb2.StatsRequest, context: object
    ) -> control_pb2.StatsResponse:
        """Counters since the start and gauges of this moment."""
        answer = control_pb2.StatsResponse()
        answer.CopyFrom(self._stats())
        answer.uptime_s = time.monotonic() - self._started
        answer.resident_bytes = resident_bytes()
        return answer

    async def Drain(  # noqa: N802 - gRPC's name
        self, request: control_pb2.DrainRequest, context: object
    ) -> control_pb2.DrainResponse:
        """Begins to drain and returns at once."""
        self._drain()
        return control_pb2.DrainResponse()
