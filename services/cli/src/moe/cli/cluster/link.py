"""A command's link to a cluster: an event loop in a thread, the API behind it, and sockets that lead to pods.

gRPC reaches the routers through those sockets as if they were processes of this machine. Inside the cluster pods are
dialled as they are.
"""

import asyncio
import contextlib
import random
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from moe.cli.cluster.access import configured, inside
from moe.cli.cluster.api import Body, ClusterApi
from moe.cli.cluster.deployment import ClusterDeployment, deployment, grpc_port, ready_routers
from moe.cli.cluster.place import Place
from moe.cli.cluster.tunnels import Tunnels
from moe.cli.supervise.lifecycle import State
from moe.cli.supervise.state_file import ProcessRecord
from moe.discovery import names

T = TypeVar("T")

_ANSWERING = (State.READY.value, State.UNREADY.value)


class ClusterLink:
    """One model on one cluster. Every method raises CliError, with the context, the namespace and what to do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, api: ClusterApi, tunnels: Tunnels | None, model: Body) -> None:
        self._loop = loop
        self._api = api
        self._tunnels = tunnels
        self._name = str(model["metadata"]["name"])
        self._targets: dict[str, str] = {}

    def router(self) -> str:
        """The gRPC target by which to talk to the model; each connection goes to a router that is ready then."""
        return self._wait(self._router())

    def deployment(self) -> ClusterDeployment:
        """How the model stands, with endpoints that can be dialled from here."""
        return self._wait(self._deployment())

    def trouble(self) -> str:
        """What went wrong on the way to a pod last; empty when nothing did."""
        return self._tunnels.trouble if self._tunnels else ""

    async def _router(self) -> str:
        if self._tunnels is None:
            await self._routers()  # a model without one is said before anything is asked of it
            return str((await self._api.model(self._name))["status"]["endpoint"])
        return await self._tunnels.lead(self._any_router, eager=True)

    async def _any_router(self) -> tuple[str, int]:
        pod = random.choice(await self._routers())
        return str(pod["metadata"]["name"]), grpc_port(pod)

    async def _routers(self) -> list[Body]:
        model, pods = await asyncio.gather(
            self._api.model(self._name), self._api.pods(self._name, names.ROUTER_COMPONENT)
        )
        return ready_routers(self._api.site, model, pods)

    async def _deployment(self) -> ClusterDeployment:
        model, experts, pods = await asyncio.gather(
            self._api.model(self._name), self._api.experts(self._name), self._api.pods(self._name)
        )
        found = deployment(self._api.site, model, experts, pods)
        if self._tunnels is None:
            return found
        return replace(found, processes=tuple([await self._dialable(each) for each in found.processes]))

    async def _dialable(self, process: ProcessRecord) -> ProcessRecord:
        """With the socket that leads to it; one a pod, however often it is looked at."""
        if process.state not in _ANSWERING or self._tunnels is None:
            return process
        if process.name not in self._targets:
            pod, port = process.name, int(process.endpoint.rpartition(":")[2])

            async def there() -> tuple[str, int]:
                return pod, port

            self._targets[pod] = await self._tunnels.lead(there)
        return replace(process, endpoint=self._targets[process.name])

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextlib.contextmanager
def linked(environ: Mapping[str, str], place: Place) -> Iterator[ClusterLink]:
    """A link for as long as the block runs. Raises CliError, UsageError."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cluster-link", daemon=True)
    thread.start()

    def wait(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        with tempfile.TemporaryDirectory(prefix="moe-link-") as folder:
            api = wait(_connect(environ, place))
            tunnels = None if inside(environ, place) else Tunnels(api, Path(folder))
            try:
                yield ClusterLink(loop, api, tunnels, wait(api.model(place.model)))
            finally:
                if tunnels:
                    wait(tunnels.close())
                wait(api.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _connect(environ: Mapping[str, str], place: Place) -> ClusterApi:
    return ClusterApi(*await configured(environ, place))
