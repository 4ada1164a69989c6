"""Brings models to what is wished of them: looks at one, decides, carries out, says how it stands, until it is settled.

Level-triggered: a change only says which model to look at again; everything else is read anew. So it does not matter
which changes were missed, or at which point an operator before this one was killed. Looks at one model never overlap;
one that fails is repeated after a growing pause.
"""

import asyncio
import logging
import time
from datetime import UTC, datetime

from moe.operator.cluster import ClusterError
from moe.operator.conditions import expert_status, model_status, stray_status, transitions
from moe.operator.desired import actions, desired
from moe.operator.executor import Executor
from moe.operator.kinds import EXPERT, MODEL, Ref
from moe.operator.metrics import LOOK_SECONDS, LOOKS, MODELS
from moe.operator.observed import Body, written
from moe.operator.planner import Backoff
from moe.operator.resources import ExpertStatus, ModelStatus, write
from moe.operator.world import ModelKey, World

logger = logging.getLogger("moe.operator")

_ROUNDS = 6
"""Decisions that one look may take, as what is made first is needed for what comes then."""

_GATHER_S = 0.1
"""Between two looks at one model, in which changes gather; a rollout's come by the dozen."""

_REST, _LONGEST_REST_S = 4.0, 2.0
"""Pause after a look, as a multiple of the processor time it took: large models must not take a whole processor while
they roll out."""

_REFUSED_S = 30.0
"""Until what was refused is tried again: a quota may have been raised, a name set free."""

_RETRY = Backoff(initial_s=0.5, limit_s=30.0)


class Reconciler:
    """Looks after all models of a world. image: of pods whose model names none."""

    def __init__(self, world: World, executor: Executor, image: str) -> None:
        self._world = world
        self._executor = executor
        self._image = image
        self._dirty: set[ModelKey] = set()
        self._busy: dict[ModelKey, asyncio.Task[None]] = {}
        self._failures: dict[ModelKey, int] = {}
        self._timers: dict[ModelKey, asyncio.TimerHandle] = {}

    def look_at(self, key: ModelKey) -> None:
        """The model, or something of it, has changed."""
        if not key.name:
            return
        self._dirty.add(key)
        if key not in self._busy:
            self._busy[key] = asyncio.create_task(self._attend(key), name=f"look at {key.namespace}/{key.name}")

    async def idle(self) -> None:
        """Returns when no look is under way."""
        await asyncio.gather(*self._busy.values())

    async def close(self) -> None:
        """Ends all looks where they are; the next operator goes on from there."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _attend(self, key: ModelKey) -> None:
        try:
            while key in self._dirty:
                self._dirty.discard(key)
                began = time.process_time()
                await self._look(key)
                await asyncio.sleep(min(max(_GATHER_S, _REST * (time.process_time() - began)), _LONGEST_REST_S))
        finally:
            del self._busy[key]

    async def _look(self, key: ModelKey) -> None:
        started = time.monotonic()
        MODELS.set(sum(1 for _ in self._world.models()))
        try:
            outcome = await self._settle(key)
        except ClusterError as error:
            outcome = "failed"
            logger.warning("%s/%s: %s; trying again", key.namespace, key.name, error)
        except Exception:
            outcome = "failed"
            logger.exception("%s/%s: looking at it failed; trying again", key.namespace, key.name)
        LOOKS.labels(outcome).inc()
        LOOK_SECONDS.observe(time.monotonic() - started)
        self._plan_retry(key, outcome)

    def _plan_retry(self, key: ModelKey, outcome: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        failures = self._failures[key] = self._failures.get(key, 0) + 1 if outcome == "failed" else 0
        pause = _RETRY.delay_s(failures) if failures else _REFUSED_S if outcome == "refused" else None
        if pause is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(pause, self.look_at, key)

    async def _settle(self, key: ModelKey) -> str:
        """One look: rounds of deciding and doing, then the statuses."""
        changed, refused = False, dict[Ref, str]()
        for _ in range(_ROUNDS):
            observed = self._world.observed(key)
            if observed is None or observed.deleted:
                break
            todo = actions(observed, desired(observed, self._image))
            if not todo.refs() - set(refused):
                break
            refused = await self._executor.carry_out(todo, key.namespace, observed.objects)
            changed = True
        changed |= await self._say(key, refused)
        return "refused" if refused else "changed" if changed else "settled"

    async def _say(self, key: ModelKey, refused: dict[Ref, str]) -> bool:
        """Statuses of the model and its experts, where they have changed, and the events of that."""
        observed = self._world.observed(key)
        if observed is None:
            return await self._tell_strays(key)
        if observed.deleted:
            return False
        now, wanted = _now(), desired(observed, self._image)
        status = model_status(observed, wanted, refused, now)
        changed = status != observed.status
        await self._publish(observed.model, status, observed.status, Ref(MODEL.name, observed.name), now)
        experts = [(body, expert_status(observed, body, wanted.facts, now)) for body in observed.of_kind(EXPERT.name)]
        await self._executor.together(self._publish_expert(body, status, now) for body, status in experts)
        return changed or any(status != written(body) for body, status in experts)

    async def _tell_strays(self, key: ModelKey) -> bool:
        now, changed = _now(), False
        for body in self._world.experts(key):
            if "deletionTimestamp" not in body["metadata"] and not body["metadata"].get("ownerReferences"):
                status = stray_status(body, now)
                changed |= status != written(body)
                await self._publish_expert(body, status, now)
        return changed

    async def _publish_expert(self, body: Body, status: ExpertStatus, now: str) -> None:
        await self._publish(body, status, written(body), Ref(EXPERT.name, body["metadata"]["name"]), now)

    async def _publish(
        self,
        body: Body,
        status: ModelStatus | ExpertStatus,
        before: ModelStatus | ExpertStatus,
        about: Ref,
        now: str,
    ) -> None:
        """Writes a status that differs from what was written before, and the events of that."""
        if status == before:
            return
        await self._executor.write_status(body, write(status))
        for transition in transitions(about, before.conditions, status.conditions):
            await self._executor.tell(transition, body, now)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
