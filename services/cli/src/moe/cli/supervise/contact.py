"""Asks a part how it is, over the standard health service and moe.control.v1."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moe.api.control.v1 import control_pb2, control_pb2_grpc
from moe.cli.supervise.lifecycle import Healthy, Unhealthy
from moe.runtime.server_settings import ChannelOptions, client_options


def channel_options() -> ChannelOptions:
    """Channel arguments from the command line to a part of this machine: a proxy of the environment is never meant."""
    return [*client_options(), ("grpc.enable_http_proxy", 0)]


_ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "[::0]": "[::1]"}


def dialable(endpoint: str) -> str:
    """Where to reach what listens there: an address of all interfaces is reached through the loopback one."""
    host, colon, port = endpoint.rpartition(":")
    return f"{_ANY_HOST[host]}:{port}" if colon and host in _ANY_HOST else endpoint


class Contact:
    """A connection to one part. Used in one asyncio loop."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint, options=channel_options())
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._control = control_pb2_grpc.ControlServiceStub(self._channel)

    async def health(self, timeout_s: float) -> Healthy | Unhealthy:
        """Whether it serves; never raises for the network's sake."""
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return Unhealthy(f"{error.code().name}: {error.details()}")
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return Healthy()
        return Unhealthy(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    async def stats(self, timeout_s: float) -> control_pb2.StatsResponse | None:
        """Its figures, or None when it does not answer."""
        try:
            answer: control_pb2.StatsResponse = await self._control.Stats(control_pb2.StatsRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return None
        return answer

    async def describe(self, timeout_s: float) -> control_pb2.DescribeResponse:
        """What it says of itself; empty when it is silent."""
        try:
            answer: control_pb2.DescribeResponse = await self._control.Describe(
                control_pb2.DescribeRequest(), timeout=timeout_s
            )
        except grpc.aio.AioRpcError:
            return control_pb2.DescribeResponse()
        return answer

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()
