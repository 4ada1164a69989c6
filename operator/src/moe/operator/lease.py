"""The Lease by which of several operators one acts. Losing it ends the process: a new one starts without a past.

Optimistic: every change names the version it was made from, so of two that try at once one fails. Time is counted from
when this process saw the holder's last sign of life, so the clocks of two machines need not agree.
"""

import asyncio
import logging
import time
from datetime import UTC, datetime

from moe.operator.cluster import Cluster, ClusterError
from moe.operator.kinds import LEASE
from moe.operator.manifests import Manifest
from moe.operator.settings import Settings

logger = logging.getLogger("moe.operator")


class Lease:
    """One process's view of the Lease."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = time.monotonic()
        self._held: Manifest | None = None

    async def acquire(self) -> None:
        """Returns when this process holds it."""
        waiting_for = ""
        while not await self._try():
            if self._seen[0] != waiting_for:
                waiting_for = self._seen[0]
                logger.info("%s acts; this operator waits for the Lease %s", waiting_for, self._settings.lease_name)
            await asyncio.sleep(self._settings.lease_s / 5)

    async def keep(self) -> None:
        """Renews it; returns when it is lost, which is certain before another may take it."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < self._settings.lease_s * 2 / 3:
            await asyncio.sleep(self._settings.lease_s / 5)
            started = time.monotonic()
            if await self._try():
                renewed = started
            elif self._held is None:
                break
        logger.error("the Lease %s is lost; this operator ends", self._settings.lease_name)

    async def release(self) -> None:
        """Gives it back, so that the next need not wait; what goes wrong is left to time."""
        held, self._held = self._held, None
        if held is not None:
            try:
                await self._cluster.replace(LEASE, {**held, "spec": {**held["spec"], "holderIdentity": ""}})
            except ClusterError as error:
                logger.info("the Lease is not given back: %s", error)

    async def _try(self) -> bool:
        """Takes or renews it if that is allowed. False otherwise, and when the API server can't be asked."""
        try:
            if self._held is not None and await self._renew(self._held):
                return True
            found = await self._read()
            if found is not None and not self._free(found):
                self._held = None
                return False
            self._held = await self._write(found)
        except ClusterError as error:
            if error.status == 409:
                self._held = None
            logger.log(logging.DEBUG if error.status == 409 else logging.WARNING, "the Lease: %s", error)
            return False
        return True

    async def _renew(self, held: Manifest) -> bool:
        """By what was written last, without reading; False when somebody has changed or deleted it since."""
        try:
            self._held = await self._write(held)
        except ClusterError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def _read(self) -> Manifest | None:
        try:
            return await self._cluster.get(LEASE.path(self._settings.lease_namespace, self._settings.lease_name))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def _free(self, found: Manifest) -> bool:
        spec = found.get("spec", {})
        holder = spec.get("holderIdentity") or ""
        sign = (holder, str(spec.get("renewTime")))
        if sign != self._seen:
            self._seen, self._seen_at = sign, time.monotonic()
        silent = time.monotonic() - self._seen_at > float(spec.get("leaseDurationSeconds", self._settings.lease_s))
        return not holder or holder == self._settings.identity or silent

    async def _write(self, found: Manifest | None) -> Manifest:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = (found or {}).get("spec", {})
        mine = before.get("holderIdentity") == self._settings.identity
        spec = {
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": max(1, round(self._settings.lease_s)),
            "renewTime": now,
            "acquireTime": before.get("acquireTime", now) if mine else now,
            "leaseTransitions": int(before.get("leaseTransitions", 0)) + (0 if mine else 1),
        }
        if found is not None:
            return await self._cluster.replace(LEASE, {**found, "spec": spec})
        names = {"name": self._settings.lease_name, "namespace": self._settings.lease_namespace}
        return await self._cluster.create(
            LEASE, {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": names, "spec": spec}
        )
