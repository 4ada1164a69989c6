"""What a process does between opening its port and READY: load, check, pack, probe its weights, saying how far it is.

It runs in a thread beside the server's loop, so that health answers NOT_SERVING meanwhile, and stops between two steps
when the process is told to end.
"""

import logging
import threading
import time

from moe.expert.packing import Computation, PackedWeights, pack
from moe.expert.probe import check_probes
from moe.expert.weights import Progress, load_group
from moe.models.package import Package
from moe.runtime.process import set_threads, settle_memory

logger = logging.getLogger("moe.expert")

_REPORT_EVERY_S = 2.0


class StoppedError(Exception):
    """The process is to end before it became ready."""


class Startup:
    """Gets a group's weights ready. Every method may be called from any thread."""

    def __init__(self, package: Package, experts: tuple[int, ...], dtype: str, computation: Computation) -> None:
        self._package = package
        self._experts = experts
        self._dtype = dtype
        self._computation = computation
        self._stopped = threading.Event()

    def run(self, threads: int) -> PackedWeights:
        """The weights, checked, packed and probed. Raises StartupError for a bad package, StoppedError after `stop`."""
        set_threads(threads)
        # The mapped weights are named nowhere, so that their files are given back once they are packed.
        packed = pack(
            load_group(self._package, self._experts, self._dtype, self._reporter("checked the files of", "experts")),
            self._computation,
        )
        check_probes(self._package, packed, self._reporter("probed", "weights (layer, expert)"))
        settle_memory()
        return packed

    def stop(self) -> None:
        """Has `run` raise StoppedError at its next step."""
        self._stopped.set()

    def _reporter(self, done_what: str, of_what: str) -> Progress:
        """Logs the last step, and others no more often than every two seconds."""
        last = time.monotonic()

        def report(done: int, total: int) -> None:
            nonlocal last
            if self._stopped.is_set():
                raise StoppedError
            if done == total or time.monotonic() - last >= _REPORT_EVERY_S:
                last = time.monotonic()
                logger.info("%s %d of %d %s", done_what, done, total, of_what)

        return report
