"""The directory in a file: `moe up` writes it, routers and aggregators on the same machine follow it."""

import contextlib
import logging
import os
import tempfile
import threading
from pathlib import Path

from moe.discovery.directory import NO_WISHES, RoutingWishes, Snapshot
from moe.discovery.document import DirectoryError, decode, encode
from moe.discovery.published import Published

logger = logging.getLogger("moe.discovery")

POLL_INTERVAL_S = 0.05
"""Between two looks at the file: one stat(2), a few microseconds; a new replica is seen within a decode step."""

_Stamp = tuple[int, int, int]


def write(path: Path, snapshot: Snapshot) -> None:
    """Replaces the file in one step: a reader sees the old document or the new one, never a part.

    Raises DirectoryError for a snapshot that no reader would take, OSError when the file can't be written.
    """
    text = encode(snapshot)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


class FileDirectory:
    """Follows a file that `write` replaces; implements moe.discovery.directory.Directory.

    While the file is missing or broken the last good snapshot stays, at first an empty one of version 0; each
    breakage is logged once. Versions are the file's, but never fall: a writer that starts again from 1 is followed too.
    """

    def __init__(self, path: Path, poll_interval_s: float = POLL_INTERVAL_S) -> None:
        self._path = path
        self._poll_interval_s = poll_interval_s
        self._published = Published()
        self._stamp: _Stamp | None = None
        self._complaint = ""
        self._look()
        self._watcher = threading.Thread(target=self._watch, name="directory-watcher", daemon=True)
        self._watcher.start()

    def current(self) -> Snapshot:
        """The newest snapshot. Cheap; never blocks."""
        return self._published.current()

    def wait_newer(self, version: int, timeout_s: float) -> Snapshot:
        """Blocks until a snapshot newer than `version` is there, the time is up or `close`; returns the newest."""
        return self._published.wait_newer(version, timeout_s)

    def wishes(self) -> RoutingWishes:
        """None: a file says who serves, not how to route."""
        return NO_WISHES

    def trouble(self) -> str:
        """What is wrong with the file; empty when nothing is."""
        return self._complaint

    def close(self) -> None:
        """Stops watching and wakes whoever waits. Doing it twice is no harm."""
        self._published.close()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._published.closed(self._poll_interval_s):
            self._look()

    def _look(self) -> None:
        """Reads the file when it is another than at the last look."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp == self._stamp:
                return
            text = self._path.read_text(encoding="utf-8")
            self._stamp = stamp
            self._published.publish(decode(text))
            self._complaint = ""
        except (OSError, UnicodeDecodeError, DirectoryError) as error:
            self._complain(str(error))

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            logger.warning("directory %s: %s; keeping version %d", self._path, complaint, self.current().version)
        self._complaint = complaint
