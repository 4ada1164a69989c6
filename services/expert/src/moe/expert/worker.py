"""The compute thread: pulls batches from the wire, computes, hands the partials back, and outlives every failure.

What goes wrong with a batch is answered FAILED to the routers in it and logged; the next batch is none the worse. The
thread ends when it is drained: nothing new is taken by then, and nothing waits.
"""

import logging
import threading
import time
from collections.abc import Callable

import torch
from moe.expert.compute import compute
from moe.expert.counters import Counters
from moe.expert.packing import PackedWeights
from moe.runtime.process import set_threads
from moe.runtime.progress import Progress
from moe.wire.port import Batch, ExpertWire

logger = logging.getLogger("moe.expert")

POLL_S = 0.5
"""How long the wire is waited for before the drain is looked at; it wakes at once when there is work."""

OnDeath = Callable[[BaseException], None]


class Worker:
    """Computes for one wire, in a thread of its own from `start` until it is drained.

    on_death: called, in that thread, with what ended it against its will: a broken wire, not a failed batch.
    """

    def __init__(
        self, wire: ExpertWire, counters: Counters, on_death: OnDeath, progress: Progress, threads: int = 1
    ) -> None:
        self._wire = wire
        self._counters = counters
        self._on_death = on_death
        self._progress = progress
        self._threads = threads
        self._draining = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, weights: PackedWeights) -> None:
        """Begins to compute with these weights."""
        self._thread = threading.Thread(target=self._run, args=(weights,), name="moe-expert-compute", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Has the wire refuse what is new and the thread end when nothing waits any more; returns at once.

        Without a thread (the weights never came) what waits is answered FAILED.
        """
        self._wire.drain()
        self._draining.set()
        if self._thread is None:
            while (batch := self._wire.next_batch(0)) is not None:
                self._answer_failed(batch, "the process ends before it was ready; take another replica")

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread's end; False when it took longer."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, weights: PackedWeights) -> None:
        try:
            # torch keeps the count of threads and the inference mode by thread.
            set_threads(self._threads)
            self._progress.begin()
            with torch.inference_mode():
                while self._serve_one(weights):
                    self._progress.beat()
            self._progress.end()
        except BaseException as error:
            self._on_death(error)

    def _serve_one(self, weights: PackedWeights) -> bool:
        # Read before the queue is looked at: an empty queue means the end only if it was closed by then.
        draining = self._draining.is_set()
        batch = self._wire.next_batch(0 if draining else POLL_S)
        if batch is None:
            return not draining
        try:
            self._compute(batch, weights)
        except Exception as error:
            logger.exception("a batch of layer %d failed", batch.layer)
            self._answer_failed(batch, f"computing layer {batch.layer} failed: {type(error).__name__}: {error}")
        return True

    def _compute(self, batch: Batch, weights: PackedWeights) -> None:
        start = time.monotonic()
        result = compute(batch.items, weights)
        rows = sum(len(item.rows) for item in batch.items)
        self._counters.computed(rows, result.slots, time.monotonic() - start)
        self._wire.finish(batch, result.partials)

    def _answer_failed(self, batch: Batch, message: str) -> None:
        try:
            self._wire.fail(batch, message)
        except Exception:
            logger.exception("a failed batch of layer %d could not be answered", batch.layer)
