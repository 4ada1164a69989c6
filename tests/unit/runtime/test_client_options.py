"""How a client connects: a peer that is far or busy gets its seconds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moe.runtime.server_settings import client_options
from support.running_service import SERVING, Running

SLOW_S = 1.0
"""What the way to the peer takes: ten times the first back-off."""


async def test_a_peer_that_answers_late_is_connected_to_at_the_first_attempt(tmp_path: Path) -> None:
    async with Running(tmp_path) as running:
        await running.until(SERVING)
        async with slow_way(running.settings.listen) as address, channel(address) as slow:
            answer = await health(slow).Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert answer.status == SERVING


@asynccontextmanager
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=client_options()) as made:
        yield made


def health(made: grpc.aio.Channel) -> health_pb2_grpc.HealthStub:
    return health_pb2_grpc.HealthStub(made)


@asynccontextmanager
async def slow_way(to: str) -> AsyncIterator[str]:
    """An address that leads to a unix socket, but only after a while."""

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while chunk := await source.read(1 << 16):
            target.write(chunk)
        target.close()

    async def connect(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        await asyncio.sleep(SLOW_S)
        far_in, far_out = await asyncio.open_unix_connection(to.removeprefix("unix:"))
        await asyncio.gather(copy(near_in, far_out), copy(far_in, near_out), return_exceptions=True)

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
