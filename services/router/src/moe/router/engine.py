"""The engine: one thread that packs steps, runs the backbone with remote experts, draws tokens and hands them on.

Requests come in and are cancelled from other threads; everything else happens in the engine's own. Whatever goes wrong
in a step becomes the error of the requests in it, and the loop lives on. A request that ends, in whichever way, frees
its slot before the next step.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from moe.models.contract import Backbone
from moe.models.text import Tokenizer
from moe.router.accounting import SlotCounter
from moe.router.domain import Generation, Scoring
from moe.router.gating import OWN_GATES, GateSettings, Gating
from moe.router.jobs import GenerationJob, Job, ScoringJob
from moe.router.layer_call import Abandoned, LayerCaller
from moe.router.outlet import Outlet
from moe.router.packing import Step, pack
from moe.router.remote_experts import RemoteExperts
from moe.router.scheduler import ScheduleLimits, Scheduler, Work
from moe.router.settling import settle
from moe.router.tally import Tally
from moe.runtime.errors import DeadlineExceeded, MoeError, Unavailable
from moe.runtime.progress import Progress
from torch import Tensor

logger = logging.getLogger("moe.router")

_IDLE_S = 0.1
"""How often an idle engine looks up: for the directory's changes, and for clients that read again."""

_SMOOTHING = 0.2


@dataclass(frozen=True)
class EngineSettings:
    """schedule: bounds of the scheduler. stall_s: how long a client may leave its stream unread."""

    schedule: ScheduleLimits
    stall_s: float


class Engine:
    """Runs requests. `start` it once; the backbone's cache has to be allocated."""

    def __init__(
        self,
        backbone: Backbone,
        caller: LayerCaller,
        settings: EngineSettings,
        tokenizer: Tokenizer | None = None,
        on_crash: Callable[[BaseException], None] = lambda error: None,
        *,
        gates: GateSettings = OWN_GATES,
        progress: Progress | None = None,
    ) -> None:
        """on_crash: called when the loop itself fails, which is a fault in the program.

        Raises ModelsError for gates that the family can't have.
        """
        self._backbone = backbone
        self._caller = caller
        self._settings = settings
        self._tokenizer = tokenizer
        self._on_crash = on_crash
        self._slots = SlotCounter(max(backbone.info.moe_layers.values()))
        self._progress = progress or Progress(math.inf)
        self.gating = Gating(backbone, gates)
        self._experts = RemoteExperts(caller, backbone.info.moe_layers, self._slots)
        self._changed = threading.Condition()
        self._scheduler = Scheduler(settings.schedule)
        self._jobs: dict[int, Job] = {}
        self._keys = count(1)
        self._step_s = 0.05
        self._stopping: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.tally = Tally()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, reason: str, timeout_s: float = 30.0) -> None:
        """Ends all requests with UNAVAILABLE and this reason, and the thread."""
        with self._changed:
            self._stopping = reason
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def submit(self, request: Generation | Scoring, outlet: Outlet) -> int:
        """Puts a request into the queue; gives the key to cancel it by. Raises Overloaded, Unavailable."""
        with self._changed:
            if self._stopping is not None:
                raise Unavailable(self._stopping)
            key, now = next(self._keys), time.monotonic()
            job: Job = (
                GenerationJob(key, request, outlet, now, self._tokenizer)
                if isinstance(request, Generation)
                else ScoringJob(key, request, outlet, now)
            )
            self._scheduler.submit(key, len(job.tokens), job.need, scored=job.scored, step_s=self._step_s)
            self._jobs[key] = job
            self._changed.notify_all()
            return key

    def cancel(self, key: int) -> None:
        """Ends a request that nobody waits for. Its slot is free within a step. Unknown keys are no harm."""
        with self._changed:
            if key in self._jobs:
                self._jobs[key].cancelled = True
                self._changed.notify_all()

    def wake(self) -> None:
        """A client has read: its request may go on."""
        with self._changed:
            self._changed.notify_all()

    def load(self) -> tuple[int, int, int]:
        """Requests running, requests waiting, cache tokens promised."""
        with self._changed:
            return self._scheduler.running, self._scheduler.waiting, self._scheduler.kv_tokens_used

    def slots_by_expert(self) -> dict[int, int]:
        """How often each expert was chosen since the start; those never chosen are left out."""
        return {expert: slots for expert, slots in enumerate(self._slots.total.tolist()) if slots}

    def _run(self) -> None:
        try:
            self._progress.begin()
            with torch.inference_mode():
                while self._turn():
                    self._progress.beat()
        except BaseException as error:
            logger.critical("the engine's loop failed", exc_info=error)
            self._stopping = "the router's engine has failed; its log has the trace"
            self._on_crash(error)
        self._progress.end()
        self._end_all(self._stopping or "the router has stopped")

    def _turn(self) -> bool:
        """One round; false when it is time to stop."""
        self._caller.fleet()
        with self._changed:
            self._sweep(time.monotonic())
            if self._stopping is not None:
                return False
            works = self._scheduler.plan()
            if not works:
                self._changed.wait(_IDLE_S)
                return True
            jobs = [self._jobs[work.key] for work in works]
        self._step(works, jobs)
        return True

    def _sweep(self, now: float) -> None:
        """Removes who is cancelled, pauses who isn't read, ends who wasn't read for too long."""
        for job in list(self._jobs.values()):
            if job.cancelled:
                self._remove(job, "CANCELLED")
            elif job.outlet.full:
                job.stalled_since = job.stalled_since or now
                self._scheduler.pause(job.key, True)
                if now - job.stalled_since > self._settings.stall_s:
                    limit = f"its stream was not read for {self._settings.stall_s:g} s (--stall-timeout-s)"
                    self._fail(job, DeadlineExceeded(f"generation was ended because {limit}"))
            elif job.stalled_since is not None:
                job.stalled_since = None
                self._scheduler.pause(job.key, False)

    def _step(self, works: Sequence[Work], jobs: Sequence[Job]) -> None:
        began = time.monotonic()
        self.gating.heed(self._caller.wishes())
        for job in jobs:
            job.started = began if job.started is None else job.started
        step = pack(works, jobs)
        try:
            logits = self._forward(step)
            counts = self._slots.finish(len(works))
            if logits is not None:
                self._advance(step, settle(step, logits, counts, time.monotonic()))
        except Exception as error:
            logger.exception("a step of %d requests failed", len(jobs))
            self._slots.drop()
            step.ledger.lose_all(MoeError(f"the engine's step failed: {type(error).__name__}: {error}"))
        self._conclude(step)
        self.tally.steps += 1
        self._step_s += _SMOOTHING * (time.monotonic() - began - self._step_s)

    def _forward(self, step: Step) -> Tensor | None:
        """The step's logits; None when nobody is left who wants them."""
        self._experts.begin(step.ledger, lambda: self._forsaken(step))
        try:
            return self._backbone.step(step.batch, self._experts)
        except Abandoned:
            return None

    def _forsaken(self, step: Step) -> bool:
        """Whether nobody waits for a step any more; asked at each layer and each look of a wait, so a sign of life."""
        self._progress.beat()
        return self._stopping is not None or not step.served()

    def _advance(self, step: Step, drawn: Sequence[int]) -> None:
        with self._changed:
            for work, job, tokens in zip(step.works, step.jobs, drawn, strict=True):
                self._scheduler.advance(work, tokens)
                self.tally.count_tokens(work, job, tokens)

    def _conclude(self, step: Step) -> None:
        """Ends the requests that are through or lost."""
        now = time.monotonic()
        with self._changed:
            for place, job in enumerate(step.jobs):
                if place in step.ledger.errors:
                    self._fail(job, step.ledger.errors[place])
                elif isinstance(job, GenerationJob) and job.finish is not None:
                    self._remove(job, job.finish.name)
                    job.outlet.put(job.ending(now))
                elif isinstance(job, ScoringJob) and job.finished:
                    self._remove(job, "SCORED")
                    job.outlet.put(job.result())

    def _fail(self, job: Job, error: MoeError) -> None:
        self._remove(job, error.code.name)
        job.outlet.fail(error)

    def _remove(self, job: Job, outcome: str) -> None:
        """Frees whatever the request holds."""
        if self._jobs.pop(job.key, None) is None:
            return
        slot = self._scheduler.remove(job.key)
        if slot is not None:
            self._backbone.release(slot)
        self.tally.finished[outcome] += 1
        for degradation in job.degradations.values():
            self.tally.degradations[degradation.kind] += degradation.layer_calls

    def _end_all(self, reason: str) -> None:
        with self._changed:
            for job in list(self._jobs.values()):
                self._fail(job, Unavailable(reason))
