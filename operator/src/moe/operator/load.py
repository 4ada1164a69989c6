"""How busy expert groups are: from two readings of each pod to the per cent that a MoEExpert shows. Pure.

Idle, unreadable and not known yet are three things. An idle group shows 0. A group none of whose ready pods can be read
shows nothing, as a 0 would take replicas from it. What is shown stays while its pods have not been read twice, so
that an operator that starts anew writes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from moe.operator.naming import EXPERT_PLURAL, GROUP
from moe.operator.observed import Observed, serving

MATERIAL = 3.0
"""Points by which a load has to move to be written again: a steady load's own noise over one window is below it."""

IDLE = 0.1
"""Per cent below which a group counts as idle, even one that showed a load before."""

Shares = Mapping[str, float | None]
"""Busy share of each pod, 0 to 1, by its uid. None: it could not be read. Absent: it is not known yet."""


@dataclass(frozen=True)
class Reading:
    """A pod at one moment. at_s: of a monotonic clock; busy_s: seconds that it has computed since its start."""

    at_s: float
    busy_s: float


def utilisation(before: Reading | None, now: Reading) -> float | None:
    """Part of the time between two readings of a pod in which it computed, 0 to 1.

    None where they don't tell: there is no earlier one, or the process was started again in between (the count fell).
    A kernel call counts when it ends, so one that began before the window can't make it more than 1.
    """
    if before is None or now.busy_s < before.busy_s or now.at_s <= before.at_s:
        return None
    return min(1.0, (now.busy_s - before.busy_s) / (now.at_s - before.at_s))


def shares(asked: Iterable[str], before: Mapping[str, Reading], now: Mapping[str, Reading]) -> dict[str, float | None]:
    """Of the pods that were asked, by uid. before, now: of the last round and of this one; one that failed has none."""
    found: dict[str, float | None] = {}
    for uid in asked:
        if uid not in now:
            found[uid] = None
        elif (share := utilisation(before.get(uid), now[uid])) is not None:
            found[uid] = share
    return found


def load_of(observed: Observed, group: str, shown: int | None) -> int | None:
    """Per cent to be shown of an expert group: the mean of its ready pods that could be read; None: nothing.

    shown: what its MoEExpert says now. It stays where older definitions would drop another.
    """
    if f"{EXPERT_PLURAL}.{GROUP}" in observed.outdated:
        return shown
    pods = [str(pod["metadata"]["uid"]) for pod in observed.pods_of("expert", group) if serving(pod)]
    known = [share for share in map(observed.shares.get, pods) if share is not None]
    if known:
        return in_per_cent(fmean(known), shown)
    return None if all(uid in observed.shares for uid in pods) else shown


def in_per_cent(share: float, shown: int | None) -> int:
    """A share as it is shown: what is shown already, unless the load has moved by `MATERIAL` or come to rest."""
    percent = 100.0 * share
    if percent < IDLE:
        return 0
    if shown and abs(percent - shown) < MATERIAL:
        return shown
    return round(percent)
