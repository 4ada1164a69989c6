"""A process that lets the machine reach the API server: it listens on loopback and connects inside the namespace.

So a kubeconfig works from anywhere on the machine, for kubectl, helm and Python alike, and through `port-forward`
everything else does. It copies bytes; who may what is the API server's business (TLS goes through). A test that takes
the API server away, and `port-forward` with it, runs another one to what it has to reach meanwhile.
"""

import asyncio
import contextlib
import socket
import sys
from functools import partial

from . import network

_CHUNK = 1 << 16


def listening(port: int) -> socket.socket:
    """A socket of the network that this thread is in; port 0 takes a free one."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


async def _serve(listener: socket.socket, host: str, port: int) -> None:
    server = await asyncio.start_server(partial(_connection, host, port), sock=listener)
    async with server:
        await server.serve_forever()


async def _connection(host: str, port: int, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
    try:
        there_in, there_out = await asyncio.open_connection(host, port)
    except OSError:
        client_out.transport.abort()
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(client_in, there_out))
            both.create_task(_copy(there_in, client_out))
    except* OSError:
        pass
    for writer in (client_out, there_out):
        writer.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        target.write(chunk)
        await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof()


def main(namespace: str, port: str, host: str = network.NODE_ADDRESS, there: str = str(network.API_PORT)) -> None:
    """Runs until it is ended. port: on loopback, 0 for any; host, there: address and port inside the namespace.

    Prints where it listens, once it does.
    """
    listener = listening(int(port))
    network.enter(namespace)
    print("{}:{}".format(*listener.getsockname()), flush=True)
    asyncio.run(_serve(listener, host, int(there)))


if __name__ == "__main__":
    main(*sys.argv[1:])
