"""Runs the operator: `python -m moe.operator --image IMAGE [--namespace NAMESPACE]`.

Waits for its turn (Lease), then for the custom resource definitions, then watches and acts until it is told to end or
loses its turn.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

import kopf
from moe.operator.cluster import Cluster, ClusterError
from moe.operator.executor import Executor
from moe.operator.handlers import kopf_settings, registry_of
from moe.operator.lease import Lease
from moe.operator.load_rounds import LoadRounds
from moe.operator.meter import page_meter
from moe.operator.metrics import LEADING
from moe.operator.pages import serve_pages
from moe.operator.reconciler import Reconciler
from moe.operator.served_definitions import until_current, until_served
from moe.operator.settings import Settings, read_settings
from moe.operator.watchdog import watch_over
from moe.operator.world import World

logger = logging.getLogger("moe.operator")


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until told to end.

    Returns 0; 1 when the Lease is lost, watches have fallen silent or the port is taken; 2 for bad settings.
    """
    settings = read_settings(sys.argv[1:] if argv is None else argv, os.environ)
    kopf.configure(log_format=kopf.LogFormat.JSON if settings.log_format == "json" else kopf.LogFormat.PLAIN)
    logging.getLogger().setLevel(settings.log_level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event that it has passed on
    try:
        return asyncio.run(operate(settings))
    except (ClusterError, OSError) as error:
        logger.error("the operator ends: %s", error)
        return 1


async def operate(settings: Settings) -> int:
    """The operator's life. Raises ClusterError when there is no way to any API server, OSError for a taken port."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cluster = await Cluster.connect()
    ready = asyncio.Event()
    pages = await serve_pages(settings.port, ready.is_set)
    lease = Lease(cluster, settings)
    try:
        ready.set()
        if not await _unless(stop, lease.acquire()):
            return 0
        LEADING.set(1)
        logger.info("%s holds the Lease and acts in %s", settings.identity, settings.namespace or "all namespaces")
        world = World()
        if not await _unless(stop, _know_definitions(cluster, world)):
            return 0
        return await _act(cluster, settings, lease, world, stop)
    finally:
        LEADING.set(0)
        await lease.release()
        await pages.cleanup()
        await cluster.close()


async def _act(cluster: Cluster, settings: Settings, lease: Lease, world: World, stop: asyncio.Event) -> int:
    """Watches and acts. Returns 0 when told to end, 1 when the Lease is lost or watches have fallen silent."""
    reconciler = Reconciler(world, Executor(cluster, world.put, settings.identity), settings.image)
    ended = asyncio.Event()
    # before kopf, which ends every task that began after it, and takes the signals over
    keeping = asyncio.create_task(lease.keep())
    stopping = asyncio.create_task(stop.wait())
    guarding = asyncio.create_task(watch_over(cluster, world, settings.namespace))
    renewing = asyncio.create_task(_follow_definitions(cluster, world, reconciler))
    measuring = asyncio.create_task(_measure_loads(world, reconciler))
    watching = asyncio.create_task(
        kopf.operator(
            registry=registry_of(world, reconciler),
            settings=kopf_settings(),
            clusterwide=not settings.namespace,
            namespaces=[settings.namespace] if settings.namespace else [],
            standalone=True,
            stop_flag=ended,
        )
    )
    done, _ = await asyncio.wait({watching, keeping, stopping, guarding}, return_when=asyncio.FIRST_COMPLETED)
    ended.set()
    outcome = (await asyncio.gather(watching, return_exceptions=True))[0]
    for each in (keeping, stopping, guarding, renewing, measuring):
        each.cancel()
    if isinstance(outcome, BaseException):
        logger.error("watching has failed", exc_info=outcome)
    return 1 if done & {keeping, guarding} or isinstance(outcome, BaseException) else 0


async def _measure_loads(world: World, reconciler: Reconciler) -> None:
    async with page_meter() as meter:
        await LoadRounds(world, meter, reconciler.look_at).keep()


async def _know_definitions(cluster: Cluster, world: World) -> None:
    world.outdated = await until_served(cluster)


async def _follow_definitions(cluster: Cluster, world: World, reconciler: Reconciler) -> None:
    """Has every model told when older definitions have been brought up to date."""
    if not world.outdated:
        return
    await until_current(cluster)
    world.outdated = ()
    for key in list(world.models()):
        reconciler.look_at(key)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work was done before it was time to end."""
    task, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for each in (task, stopping):
        if not each.done():
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
    if task.cancelled() or not task.done():
        return False
    task.result()
    return True


if __name__ == "__main__":
    sys.exit(main())
