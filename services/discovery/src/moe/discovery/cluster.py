"""The directory in a cluster: follows the pods of a model, its expert groups and its wishes by a Kubernetes watch.

A thread with an event loop of its own; readers only ever see finished snapshots. While the API server is away the last
view stays, `trouble` says why it may be old, and the log says when that began and ended.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping

from moe.discovery import names
from moe.discovery.cluster_client import ClusterClient
from moe.discovery.cluster_objects import snapshot_of, wishes_of
from moe.discovery.cluster_watch import LONGEST_WAIT_S, ApiError, Body, Kind, Listener, follow
from moe.discovery.directory import NO_WISHES, RoutingWishes, Snapshot
from moe.discovery.published import Published

logger = logging.getLogger("moe.discovery")


class ClusterDirectory:
    """Follows one MoEModel; implements moe.discovery.directory.Directory."""

    def __init__(self, namespace: str, model: str) -> None:
        self._namespace = namespace
        self._model = model
        self._where = f"kubernetes:{namespace}/{model}"
        self._published = Published()
        self._wishes = NO_WISHES
        self._seen: dict[str, Mapping[str, Body]] = {}
        self._losses: dict[str, str] = {}
        self._lost_at = 0.0
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="directory-watcher", daemon=True)
        self._thread.start()

    def current(self) -> Snapshot:
        """The newest snapshot. Cheap; never blocks."""
        return self._published.current()

    def wait_newer(self, version: int, timeout_s: float) -> Snapshot:
        """Blocks until a snapshot newer than `version` is there, the time is up or `close`; returns the newest."""
        return self._published.wait_newer(version, timeout_s)

    def wishes(self) -> RoutingWishes:
        """The MoEModel's spec.routing; stays as it was when the MoEModel is deleted."""
        return self._wishes

    def trouble(self) -> str:
        """What can't be watched, and why; empty when all is."""
        return "; ".join(self._losses.values())

    def close(self) -> None:
        """Stops watching and wakes whoever waits. Doing it twice is no harm."""
        self._published.close()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    def _stop(self) -> None:
        if self._task:
            self._task.cancel()

    def _run(self) -> None:
        with self._runner, contextlib.suppress(asyncio.CancelledError):
            self._runner.run(self._watch_for_ever())

    async def _watch_for_ever(self) -> None:
        """What nobody foresaw must not end the watching unseen."""
        self._task = asyncio.current_task()
        while not self._published.closed():
            try:
                await self._watch()
            except ExceptionGroup as errors:
                logger.exception("%s: watching broke", self._where)
                self._lost("watcher", f"watching broke: {errors.exceptions[0]!r}")
            await asyncio.sleep(LONGEST_WAIT_S)

    async def _watch(self) -> None:
        client = await self._connect()
        try:
            async with asyncio.TaskGroup() as watches:
                for kind in self._kinds():
                    watches.create_task(follow(client, kind, self._listener(kind.plural)))
        finally:
            await client.close()

    async def _connect(self) -> ClusterClient:
        """A service account's token may come later than its pod."""
        while True:
            try:
                client = await ClusterClient.connect(self._namespace)
            except ApiError as error:
                self._lost("connection", error.message)
                await asyncio.sleep(LONGEST_WAIT_S)
            else:
                for each in ("connection", "watcher"):
                    self._found(each)
                return client

    def _kinds(self) -> list[Kind]:
        selector = f"{names.MODEL_LABEL}={self._model}"
        return [
            Kind(names.SLICES_GROUP, names.SLICES_VERSION, names.SLICES, selector),
            Kind(names.GROUP, names.VERSION, names.EXPERTS, selector),
            Kind(names.GROUP, names.VERSION, names.MODELS, name=self._model),
        ]

    def _listener(self, plural: str) -> Listener:
        return Listener(
            changed=lambda objects: self._take(plural, objects),
            lost=lambda reason: self._lost(plural, reason),
            found=lambda: self._found(plural),
        )

    def _take(self, plural: str, objects: Mapping[str, Body]) -> None:
        self._seen[plural] = objects
        if plural == names.MODELS:
            self._take_wishes(objects.get(self._model))
        elif names.SLICES in self._seen and names.EXPERTS in self._seen:
            slices, experts = self._seen[names.SLICES].values(), self._seen[names.EXPERTS].values()
            self._published.publish(snapshot_of(self._model, slices, experts))

    def _take_wishes(self, model: Body | None) -> None:
        wishes = wishes_of(model)
        if model is not None and wishes != self._wishes:
            logger.info("%s: routing is to be %s", self._where, wishes)
            self._wishes = wishes

    def _lost(self, what: str, reason: str) -> None:
        """Said once a loss, not once a try."""
        if not self._losses:
            self._lost_at = time.monotonic()
            seen = self.current()
            logger.warning(
                "%s: %s; keeping the view of version %d with %d experts",
                self._where,
                reason,
                seen.version,
                len(seen.experts),
            )
        self._losses = {**self._losses, what: reason}

    def _found(self, what: str) -> None:
        if what in self._losses:
            self._losses = {each: reason for each, reason in self._losses.items() if each != what}
            if not self._losses:
                logger.info("%s: watching again after %.1f s", self._where, time.monotonic() - self._lost_at)
