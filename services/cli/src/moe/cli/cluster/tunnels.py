"""Unix sockets of this machine that lead to ports of pods, each connection by a port-forward of its own.

The frames are Kubernetes' (v4.channel.k8s.io, one port): a byte names the channel, 0 for data and 1 for what went
wrong, and the first frame of each channel only repeats the port.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from moe.cli.cluster.api import ClusterApi
from moe.cli.errors import CliError

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse as Way

Choose = Callable[[], Awaitable[tuple[str, int]]]
"""Which pod and port the next connection leads to. Raises CliError when there is none."""

_DATA, _FAULT = 0, 1
_CHUNK = 1 << 16


class Tunnels:
    """The sockets of one command, in a folder of its own. To be used on one event loop."""

    def __init__(self, api: ClusterApi, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._servers: list[asyncio.Server] = []
        self._carrying: set[asyncio.Task[None]] = set()
        self._ways = contextlib.AsyncExitStack()
        self.trouble = ""

    async def lead(self, choose: Choose, *, eager: bool = False) -> str:
        """The gRPC target of a socket that leads wherever is chosen when somebody connects.

        eager: opens the way of the first connection now. Raises CliError when there is none.
        """
        path = self._folder / f"{len(self._servers)}.sock"
        prepared = [await self._open(choose)] if eager else []

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connected(choose, prepared, reader, writer)

        self._servers.append(await asyncio.start_unix_server(connected, path))
        return f"unix:{path}"

    async def close(self) -> None:
        """Ends all connections."""
        for server in self._servers:
            server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        await self._ways.aclose()

    async def _open(self, choose: Choose) -> tuple[str, "Way"]:
        pod, port = await choose()
        return pod, await self._ways.enter_async_context(self._api.way(pod, port))

    async def _connected(
        self,
        choose: Choose,
        prepared: list[tuple[str, "Way"]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """One connection to its end. What goes wrong closes it, and is kept for whoever finds it closed."""
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._carrying.add(task)
        try:
            pod, way = prepared.pop() if prepared else await self._open(choose)
            await self._carry(pod, reader, writer, way)
        except CliError as error:
            self.trouble = str(error)
        except (asyncio.CancelledError, ConnectionError):
            pass  # the command ends, or the client has hung up
        finally:
            self._carrying.discard(task)
            writer.close()

    async def _carry(
        self,
        pod: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: "Way",
    ) -> None:
        sending = asyncio.create_task(_send(reader, way))
        begun = set[int]()
        try:
            async for message in way:
                channel, content = message.data[0], message.data[1:]
                if channel not in begun:
                    begun.add(channel)
                elif channel == _FAULT:
                    raise CliError(f"{self._api.site}: pod {pod}: {content.decode(errors='replace').strip()}")
                else:
                    writer.write(content)
                    await writer.drain()
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await sending
            await way.close()


async def _send(reader: asyncio.StreamReader, way: "Way") -> None:
    while content := await reader.read(_CHUNK):
        await way.send_bytes(bytes([_DATA]) + content)
    await way.close()
