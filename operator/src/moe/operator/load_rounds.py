"""Asks all ready expert pods, round by round, how long they have computed, and names the models whose load has moved.

It only reads: what is shown is decided and written by a look at the model, as all else is. A pod that does not answer
is one without a figure: it keeps no other from being read and changes nothing about readiness, which is the kubelet's
to tell. `EVERY_S` is both a load's window and the least time between two writes of it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from moe.operator.kinds import EXPERT
from moe.operator.load import Reading, load_of, shares
from moe.operator.meter import AT_ONCE, Meter, MeterError
from moe.operator.metrics import LOAD_READINGS
from moe.operator.observed import Observed, owned_by, serving, written
from moe.operator.world import ModelKey, World

logger = logging.getLogger("moe.operator")

EVERY_S = 30.0
"""Between two rounds: long enough to average over bursts, and that 128 experts' changes are four writes a second."""


class LoadRounds:
    """Reads the pods of a world's models. look_at: is told of models whose shown load is no longer right; clock: counts
    seconds, never back."""

    def __init__(
        self,
        world: World,
        meter: Meter,
        look_at: Callable[[ModelKey], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world = world
        self._meter = meter
        self._look_at = look_at
        self._clock = clock
        self._before: Mapping[str, Reading] = {}
        self._silent: frozenset[str] = frozenset()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def keep(self, every_s: float = EVERY_S) -> None:
        """Rounds until it is cancelled; one that fails is told, and nothing else waits for it."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.round()
            except Exception:
                logger.exception("a round of readings failed; the next comes in %g s", every_s)

    async def round(self) -> None:
        """One reading of each ready expert pod, a bounded number at a time, each for a bounded time."""
        models = {key: observed for key in self._world.models() if (observed := self._world.observed(key)) is not None}
        asked = {uid: host for observed in models.values() for uid, host in _hosts(observed)}
        failures: dict[str, str] = {}
        read = await asyncio.gather(*(self._read(uid, host, failures) for uid, host in asked.items()))
        now = {uid: reading for uid, reading in zip(asked, read, strict=True) if reading is not None}
        self._world.shares = shares(asked, self._before, now)
        self._before = now
        self._tell(failures)
        for key in models:
            observed = self._world.observed(key)
            if observed is not None and _moved(observed):
                self._look_at(key)

    async def _read(self, uid: str, host: str, failures: dict[str, str]) -> Reading | None:
        async with self._slots:
            try:
                busy_s = await self._meter.busy_s(host)
            except MeterError as error:
                LOAD_READINGS.labels("failed").inc()
                failures[uid] = str(error)
                return None
        LOAD_READINGS.labels("read").inc()
        return Reading(self._clock(), busy_s)

    def _tell(self, failures: Mapping[str, str]) -> None:
        """Once for each set of pods that can't be read, not once a round."""
        silent = frozenset(failures)
        if silent and silent != self._silent:
            logger.warning("the load of %d pods can't be read: %s", len(silent), next(iter(failures.values())))
        self._silent = silent


def _hosts(observed: Observed) -> list[tuple[str, str]]:
    """(uid, address) of a model's ready expert pods."""
    pods = observed.pods_of("expert")
    return [(str(pod["metadata"]["uid"]), str(pod["status"]["podIP"])) for pod in pods if serving(pod)]


def _moved(observed: Observed) -> bool:
    """Whether a MoEExpert shows another load than it should."""
    ours = (body for body in observed.of_kind(EXPERT.name) if owned_by(body, observed.uid))
    shown = ((body["metadata"]["name"], written(body).load_percent) for body in ours)
    return any(load_of(observed, name, percent) != percent for name, percent in shown)
