"""What the API server does not do is told in words, whatever went wrong."""

import asyncio

import pytest
from kubernetes.aio import client
from moe.operator.cluster import Cluster, ClusterError


async def test_an_api_server_that_takes_connections_and_never_answers_is_told_as_a_timeout(monkeypatch):
    monkeypatch.setattr("moe.operator.cluster._TIMEOUT_S", 0.05)
    over = asyncio.Event()

    async def serve(source, sink):
        await over.wait()
        sink.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cluster = Cluster(client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{port}")))
    async with server:
        with pytest.raises(ClusterError, match=r"^GET /here: \S*TimeoutError$") as caught:
            await cluster.get("/here")
        over.set()
    assert caught.value.passing
    await cluster.close()
