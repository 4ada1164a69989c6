"""One model looked after: what is decided is done, what is refused is said and tried later, failures pause."""

import asyncio
from dataclasses import replace

from moe.operator.cluster import ClusterError
from moe.operator.kinds import Ref, ref_of
from moe.operator.reconciler import Reconciler
from moe.operator.world import ModelKey, World
from support.small_world import FACTS, IMAGE, SmallWorld

HERE = ModelKey("here", "demo")


class Carrier:
    """Carries out in a small world, as the executor does in a cluster, and tells the operator's world."""

    def __init__(self, small, world):
        self.small, self.world = small, world
        self.done, self.statuses, self.refusing, self.failures = [], [], {}, 0
        self.version = 10
        self.moved = asyncio.Event()

    def show(self):
        """Everything as it is now, as watches would bring it."""
        self.version += 1
        for body in (self.small.model, *self.small.objects.values()):
            body["metadata"] |= {"namespace": "here", "resourceVersion": str(self.version)}
            body["metadata"].setdefault("labels", {}).setdefault("moe.dev/model", "demo")
            self.world.put(body)
        self.moved.set()

    async def carry_out(self, todo, namespace, bodies):
        if self.failures:
            self.failures -= 1
            raise ClusterError(503, "the server is currently unable to handle the request")
        refs = todo.refs()
        kept = replace(todo, apply=tuple(each for each in todo.apply if ref_of(each[0]) not in self.refusing))
        self.done += self.small._carry_out(kept)
        self.show()
        return {ref: text for ref, text in self.refusing.items() if ref in refs}

    async def write_status(self, body, status):
        self.statuses.append((body["kind"], status))
        found = (
            self.small.model
            if body["kind"] == "MoEModel"
            else self.small.objects[Ref(body["kind"], body["metadata"]["name"])]
        )
        found["status"] = status
        self.show()

    async def together(self, work):
        for each in work:
            await each

    async def tell(self, transition, body, now):
        pass


def stage(**spec):
    small, world = SmallWorld(facts=FACTS, **spec), World()
    carrier = Carrier(small, world)
    carrier.show()
    return carrier, Reconciler(world, carrier, IMAGE)


async def look(carrier, reconciler, until):
    """Looks once more and waits until something is so."""
    reconciler.look_at(HERE)
    async with asyncio.timeout(60):
        while not until():
            carrier.moved.clear()
            await carrier.moved.wait()


def settled(carrier):
    return lambda: any(kind == "MoEModel" for kind, _ in carrier.statuses)


def reason(carrier, condition):
    status = [status for kind, status in carrier.statuses if kind == "MoEModel"][-1]
    return next(each["reason"] for each in status["conditions"] if each["type"] == condition)


async def test_one_look_makes_everything_that_builds_on_each_other():
    carrier, reconciler = stage()
    await look(carrier, reconciler, settled(carrier))
    assert {"apply MoEExpert demo-003", "apply Deployment demo-003", "apply Deployment demo-router"} <= set(
        carrier.done
    )
    await reconciler.close()


async def test_a_wish_for_nothing_but_another_number_of_routers_is_done():
    carrier, reconciler = stage()
    await look(carrier, reconciler, settled(carrier))
    carrier.done.clear()
    carrier.small.wish(router={"replicas": 3})
    carrier.show()
    await look(carrier, reconciler, lambda: carrier.done)
    assert carrier.done == ["scale Deployment demo-router to 3"]
    await reconciler.close()


async def test_what_is_refused_keeps_nothing_else_from_being_made_and_is_said():
    carrier, reconciler = stage()
    carrier.refusing = {Ref("Service", "demo-001"): "exceeded quota: few"}
    await look(carrier, reconciler, settled(carrier))
    assert reason(carrier, "Degraded") == "WriteRefused"
    assert "apply Deployment demo-router" in carrier.done
    await reconciler.close()


async def test_what_the_api_server_can_not_do_now_is_tried_again():
    carrier, reconciler = stage()
    carrier.failures = 1
    await look(carrier, reconciler, settled(carrier))
    assert "apply Deployment demo-router" in carrier.done
    await reconciler.close()


async def test_a_model_that_is_going_is_left_alone():
    carrier, reconciler = stage()
    carrier.small.model["metadata"]["deletionTimestamp"] = "now"
    carrier.show()
    reconciler.look_at(HERE)
    await reconciler.idle()
    assert (carrier.done, carrier.statuses) == ([], [])
    await reconciler.close()
