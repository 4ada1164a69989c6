"""Follows the directory in a thread of its own, as waiting for its next version blocks."""

import logging
import threading
from collections.abc import Callable, Sequence

from moe.discovery.directory import Directory

_LOOK_S = 1.0
"""How long one wait lasts at most."""

logger = logging.getLogger("moe.aggregator")


class ExpertFollower:
    """Calls `tell` with the endpoints of all experts listed, ready or not, now and whenever they change."""

    def __init__(self, directory: Directory, tell: Callable[[Sequence[str]], None]) -> None:
        self._directory = directory
        self._tell = tell
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="expert-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops following and closes the directory."""
        self._stopped.set()
        self._directory.close()
        self._thread.join()

    def _follow(self) -> None:
        endpoints: tuple[str, ...] = ()
        version = -1
        while not self._stopped.is_set():
            snapshot = self._directory.wait_newer(version, _LOOK_S)
            listed = tuple(replica.endpoint for replica in snapshot.experts)
            if listed != endpoints:
                logger.info("directory version %d lists %d experts", snapshot.version, len(listed))
                endpoints = listed
                self._tell(listed)
            version = snapshot.version
