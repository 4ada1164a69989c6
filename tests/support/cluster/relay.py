"""A process that lets the machine reach the API server: it listens on loopback and connects inside the namespace.

So a kubeconfig works from anywhere on the machine, for kubectl, helm and Python alike, and through `port-forward`
everything else does. It copies bytes; who may what is the API server's business (TLS goes through).
"""

import asyncio
import contextlib
import socket
import sys

from . import network

_CHUNK = 1 << 16


def listening(port: int) -> socket.socket:
    """A socket of the network that this thread is in; port 0 takes a free one."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


async def _serve(listener: socket.socket) -> None:
    server = await asyncio.start_server(_connection, sock=listener)
    async with server:
        await server.serve_forever()


async def _connection(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
    try:
        api_in, api_out = await asyncio.open_connection(network.NODE_ADDRESS, network.API_PORT)
    except OSError:
        client_out.transport.abort()
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(client_in, api_out))
            both.create_task(_copy(api_in, client_out))
    except* OSError:
        pass
    for writer in (client_out, api_out):
        writer.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        target.write(chunk)
        await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof()


def main(namespace: str, port: str) -> None:
    """Runs until it is ended."""
    listener = listening(int(port))
    network.enter(namespace)
    asyncio.run(_serve(listener))


if __name__ == "__main__":
    main(*sys.argv[1:])
