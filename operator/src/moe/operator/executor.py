"""Carries a decision out: server-side apply wave by wave, replicas, deletions, statuses, events.

One object's refusal keeps no other from being written; refusals come back by object, for the model's conditions. What
the API server can't do at the moment is raised, to be tried again later.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from moe.operator.cluster import Cluster, ClusterError
from moe.operator.conditions import Transition
from moe.operator.desired import Actions
from moe.operator.difference import replica_owners
from moe.operator.kinds import EVENT, Ref, kind_named, ref_of
from moe.operator.manifests import Manifest
from moe.operator.metrics import EVENTS, WRITES
from moe.operator.naming import DIGEST_ANNOTATION, FIELD_MANAGER, REPLICAS_MANAGER

logger = logging.getLogger("moe.operator")

_AT_ONCE = 8
"""Requests in flight; enough to be quick, too few to crowd out others at the API server."""

Remember = Callable[[Mapping[str, Any]], object]


class Executor:
    """Writes to one cluster. remember: is told every object as the API server has it after a write."""

    def __init__(self, cluster: Cluster, remember: Remember, identity: str) -> None:
        self._cluster = cluster
        self._remember = remember
        self._identity = identity
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def carry_out(
        self, actions: Actions, namespace: str, bodies: Mapping[Ref, Mapping[str, Any]]
    ) -> dict[Ref, str]:
        """Does everything; returns what was refused and why. bodies: objects as known. Raises ClusterError for what may
        succeed later."""
        refused: dict[Ref, str] = {}
        waves = sorted({kind_named(manifest["kind"]).wave for manifest, _ in actions.apply})
        for wave in waves:
            chosen = [each for each in actions.apply if kind_named(each[0]["kind"]).wave == wave]
            await self.together([self._apply(manifest, known, refused) for manifest, known in chosen])
        await self.together(
            [self._scale(ref, count, namespace, bodies.get(ref), refused) for ref, count in actions.scale]
        )
        await self.together([self._delete(ref, namespace, bodies[ref]) for ref in actions.delete])
        return refused

    async def write_status(self, body: Mapping[str, Any], status: Manifest) -> None:
        """Replaces the status of a custom resource; one that is gone meanwhile is no error."""
        kind = kind_named(body["kind"])
        names = {"name": body["metadata"]["name"], "namespace": body["metadata"]["namespace"]}
        manifest = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": names, "status": status}
        try:
            self._remember(await self._cluster.apply_status(kind, manifest))
        except ClusterError as error:
            if error.status != 404:
                raise
        WRITES.labels("status", kind.name).inc()

    async def tell(self, transition: Transition, body: Mapping[str, Any], now: str) -> None:
        """Writes an event about an object. One that can't be written is logged: it is news, not state."""
        condition, about = transition.condition, body["metadata"]
        kind = kind_named(body["kind"])
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['name']}.", "namespace": about["namespace"]},
            "involvedObject": {
                "apiVersion": kind.api_version,
                "kind": kind.name,
                "name": about["name"],
                "namespace": about["namespace"],
                "uid": about["uid"],
                "resourceVersion": about["resourceVersion"],
            },
            "type": "Warning" if transition.warning else "Normal",
            "reason": condition.reason,
            "message": f"{condition.type} is {condition.status}: {condition.message}"[:1024],
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": f"moe.dev/{FIELD_MANAGER}",
            "reportingInstance": self._identity[:128],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._cluster.create(EVENT, event)
            EVENTS.inc()
        except ClusterError as error:
            logger.warning("event %s of %s is not written: %s", condition.reason, about["name"], error)

    async def _apply(self, manifest: Manifest, known: bool, refused: dict[Ref, str]) -> None:
        """One that the operator doesn't know as its own is applied without force, so that a stranger's object of the
        same name stays the stranger's."""
        kind, ref = kind_named(manifest["kind"]), ref_of(manifest)
        try:
            body = await self._cluster.apply(kind, manifest, force=known)
        except ClusterError as error:
            _refuse(ref, error, refused, "the name is taken by an object of somebody else; delete or rename it")
            return
        logger.info("applied %s in %s (%s)", ref, manifest["metadata"]["namespace"], _digest(manifest))
        WRITES.labels("apply", kind.name).inc()
        self._remember(body)

    async def _scale(
        self, ref: Ref, count: int, namespace: str, body: Mapping[str, Any] | None, refused: dict[Ref, str]
    ) -> None:
        """Whoever has scaled meanwhile keeps the number: without force, or, where the number is still co-owned by the
        manager that made the object, only if the object is as it was seen."""
        if ref in refused:
            return
        kind = kind_named(ref.kind)
        names = {"name": ref.name, "namespace": namespace}
        force = body is not None and FIELD_MANAGER in replica_owners(body)
        if body is not None and force:
            names["resourceVersion"] = body["metadata"]["resourceVersion"]
        manifest = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": names, "spec": {"replicas": count}}
        try:
            self._remember(await self._cluster.apply(kind, manifest, manager=REPLICAS_MANAGER, force=force))
        except ClusterError as error:
            if error.status == 409:
                logger.info("%s has changed meanwhile; its replicas are looked at again", ref)
                return
            _refuse(ref, error, refused, "")
            return
        WRITES.labels("scale", kind.name).inc()

    async def _delete(self, ref: Ref, namespace: str, body: Mapping[str, Any]) -> None:
        await self._cluster.delete(kind_named(ref.kind), namespace, ref.name, str(body["metadata"]["uid"]))
        logger.info("deleted %s in %s, as it is no longer wished", ref, namespace)
        WRITES.labels("delete", ref.kind).inc()

    async def together(self, work: Iterable[Awaitable[None]]) -> None:
        """All of it, a few at a time; then raises the first error, so that none is left running behind it."""

        async def one(task: Awaitable[None]) -> None:
            async with self._slots:
                await task

        outcomes = await asyncio.gather(*map(one, work), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


def _refuse(ref: Ref, error: ClusterError, refused: dict[Ref, str], conflict: str) -> None:
    if error.passing:
        raise error
    text = f"{conflict} ({error})" if error.status == 409 and conflict else str(error)
    logger.warning("%s is refused: %s", ref, text)
    refused[ref] = text


def _digest(manifest: Manifest) -> str:
    return str(manifest["metadata"]["annotations"][DIGEST_ANNOTATION])
