"""Follows the directory: the newest fleet, for whoever asks, from any thread."""

import logging
import threading

from moe.discovery.directory import Directory, RoutingWishes
from moe.router.groups import Fleet, FleetError, empty_fleet, updated

logger = logging.getLogger("moe.router")


class FleetTracker:
    """Turns the directory's snapshots to fleets. A snapshot that contradicts itself is logged and the last one kept."""

    def __init__(self, directory: Directory, experts: int) -> None:
        """experts: of the model, the largest number over its layers."""
        self._directory = directory
        self._lock = threading.Lock()
        self._seen: int | None = None
        self._fleet = empty_fleet(experts)

    def wishes(self) -> RoutingWishes:
        """What is wished of routing now; the same object as long as nothing has changed."""
        return self._directory.wishes()

    def current(self) -> Fleet:
        """The fleet now; the same object as long as nothing has changed. Cheap; never blocks on I/O."""
        snapshot = self._directory.current()
        if snapshot.version == self._seen:
            return self._fleet
        with self._lock:
            try:
                self._fleet = updated(self._fleet, snapshot)
            except FleetError as error:
                logger.error("directory version %d is not used: %s", snapshot.version, error)
            self._seen = snapshot.version
            return self._fleet
