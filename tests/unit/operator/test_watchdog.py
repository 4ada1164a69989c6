"""Watches that have fallen silent are noticed; changes that are only on their way are not."""

import asyncio

import pytest
from moe.operator.kinds import MODEL
from moe.operator.watchdog import watch_over
from moe.operator.world import World

HERE = MODEL.path("here")


def model(generation, uid="u"):
    metadata = {"name": "demo", "namespace": "here", "uid": uid, "resourceVersion": "5", "generation": generation}
    return {"kind": "MoEModel", "metadata": metadata, "spec": {"package": {"claim": "models"}}}


class ListingCluster:
    """Answers lists with what a test has put there; `looks` counts them."""

    def __init__(self, *models):
        self.models = list(models)
        self.looks = 0
        self.enough = asyncio.Event()

    async def get(self, path):
        self.looks += path == HERE
        if self.looks == 5:
            self.enough.set()
        return {"items": self.models if path == HERE else []}


async def ends(cluster, world):
    """Whether the watchdog ends within some looks."""
    task = asyncio.create_task(watch_over(cluster, world, "here", every_s=0.001))
    looked = asyncio.create_task(cluster.enough.wait())
    await asyncio.wait({task, looked}, return_when=asyncio.FIRST_COMPLETED)
    ended = task.done()
    for each in (task, looked):
        each.cancel()
    return ended


@pytest.mark.parametrize(("seen", "there"), [(None, 1), (1, 2)])
async def test_a_change_that_stays_unseen_ends_it(seen, there):
    world = World()
    if seen:
        world.put(model(seen))
    assert await ends(ListingCluster(model(there)), world)


async def test_an_object_that_was_made_again_and_not_seen_ends_it():
    world = World()
    world.put(model(1, uid="old"))
    assert await ends(ListingCluster(model(1, uid="new")), world)


async def test_what_is_seen_does_not():
    world = World()
    world.put(model(2))
    assert not await ends(ListingCluster(model(2)), world)


async def test_a_change_that_is_seen_by_the_next_look_does_not():
    world = World()
    world.put(model(1))

    class Busy(ListingCluster):
        """Of which one change is always on its way: the last look's has just arrived."""

        async def get(self, path):
            if path == HERE:
                world.put(self.models[0])
                self.models = [model(self.looks + 2)]
            return await super().get(path)

    assert not await ends(Busy(model(1)), world)
