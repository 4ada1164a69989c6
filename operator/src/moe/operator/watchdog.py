"""Whether watches still deliver: compares, now and then, what the API server has with what the operator has seen.

A watch that is open and silent looks like a cluster in which nothing happens. An operator that has one has to end and
leave the place to one whose watches are new.
"""

import asyncio
import logging

from moe.operator.cluster import Cluster, ClusterError
from moe.operator.kinds import EXPERT, MODEL, Kind
from moe.operator.world import World

logger = logging.getLogger("moe.operator")

LOOK_S = 20.0
"""Between two comparisons: two requests, little beside the Lease's."""

Missed = set[tuple[str, int]]


async def watch_over(cluster: Cluster, world: World, namespace: str, every_s: float = LOOK_S) -> None:
    """Returns when a change was still unseen at two comparisons in a row. namespace: empty for all."""
    missed_before: Missed = set()
    while True:
        await asyncio.sleep(every_s)
        try:
            missed = {each for kind in (MODEL, EXPERT) for each in await _missed(cluster, world, kind, namespace)}
        except ClusterError as error:
            logger.info("watches can't be checked: %s", error)
            continue
        if missed & missed_before:
            logger.error("watches are silent: %d changes of custom resources were not seen", len(missed))
            return
        missed_before = missed


async def _missed(cluster: Cluster, world: World, kind: Kind, namespace: str) -> Missed:
    """(uid, generation) of the objects of a kind whose newest wishes have not been seen."""
    listed = await cluster.get(
        kind.path(namespace) if namespace else f"/apis/{kind.group}/{kind.version}/{kind.plural}"
    )
    bodies = [{**each, "kind": kind.name} for each in listed["items"]]
    return {
        (str(each["metadata"]["uid"]), int(each["metadata"].get("generation", 0)))
        for each in bodies
        if not world.has_seen(each)
    }
