"""A real service on a real address, from start to drained, for tests of a server's life."""

import asyncio
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moe.api.control.v1 import control_pb2_grpc
from moe.runtime.server import Lifecycle, ServerSettings, serve
from moe.runtime.server_settings import client_options
from support.echo_service import Echo, EchoClient
from support.ports import unix_address

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Running:
    """An echo service that `serve` runs in a task, and a channel to it; ended when the block is left."""

    def __init__(
        self, folder: Path, *, drain_timeout_s: float = 30.0, listen: str | None = None, **changes: object
    ) -> None:
        self.echo = Echo()
        self.lifecycle = Lifecycle()
        self.service = self.echo.service(lifecycle=self.lifecycle, **changes)
        self.settings = ServerSettings(listen=listen or unix_address(folder), drain_timeout_s=drain_timeout_s)

    async def __aenter__(self) -> "Running":
        self.task = asyncio.create_task(serve(self.service, self.settings))
        self.channel = grpc.aio.insecure_channel(self.settings.listen, options=client_options())
        self.client = EchoClient(self.channel)
        self.control = control_pb2_grpc.ControlServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lifecycle.drain()
        self.echo.hold.set()
        await asyncio.wait({self.task}, timeout=20)
        await self.channel.close()

    async def status(self, name: str = "") -> int:
        """What health says now."""
        request = health_pb2.HealthCheckRequest(service=name)
        return (await self.health.Check(request, wait_for_ready=True, timeout=10)).status

    async def until(self, wanted: int, name: str = "") -> None:
        """Returns when health says so."""
        watch = self.health.Watch(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)
        async with asyncio.timeout(10):
            async for answer in watch:
                if answer.status == wanted:
                    break
        watch.cancel()

    async def exit_code(self) -> int:
        """What `serve` returns; raises what it raises."""
        async with asyncio.timeout(20):
            return await self.task
