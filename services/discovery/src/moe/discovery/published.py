"""The newest snapshot, handed from the one thread that learns of changes to all who ask or wait."""

import dataclasses
import threading
import time

from moe.discovery.directory import Snapshot

NOTHING = Snapshot(version=0, model="", experts=())
"""Before anything is known."""


class Published:
    """What both directories do the same: `current`, `wait_newer`, and the versions."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._snapshot = NOTHING
        self._closed = threading.Event()

    def current(self) -> Snapshot:
        """The newest snapshot. Cheap; never blocks."""
        return self._snapshot

    def wait_newer(self, version: int, timeout_s: float) -> Snapshot:
        """Blocks until a snapshot newer than `version` is there, the time is up or `close`; returns the newest."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._snapshot.version <= version and not self._closed.is_set():
                remaining = until - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    break
            return self._snapshot

    def publish(self, found: Snapshot) -> None:
        """Takes it unless nothing has changed. Its version counts, but never falls below the last one's plus one."""
        last = self._snapshot
        if dataclasses.replace(found, version=last.version) == last and found.version <= last.version:
            return
        with self._changed:
            self._snapshot = dataclasses.replace(found, version=max(found.version, last.version + 1))
            self._changed.notify_all()

    def closed(self, wait_s: float = 0.0) -> bool:
        """Whether `close` was called, by the end of that time."""
        return self._closed.wait(wait_s)

    def close(self) -> None:
        """Wakes whoever waits. Doing it twice is no harm."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
