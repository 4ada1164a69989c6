"""Rounds of readings: every ready expert pod once, bounded, and a look only at models whose load has moved."""

import asyncio

import pytest
from moe.operator.kinds import Ref
from moe.operator.load_rounds import LoadRounds
from moe.operator.meter import AT_ONCE, MeterError
from moe.operator.world import ModelKey, World
from support.small_world import FACTS, SmallWorld

HERE = ModelKey("here", "demo")


class Pods:
    """A meter of pods that a test makes busy: `busy` seconds by address; an address without is dead."""

    def __init__(self, **busy):
        self.busy = busy
        self.asked = []

    async def busy_s(self, host):
        self.asked.append(host)
        if host not in self.busy:
            raise MeterError(f"{host}: no route to host")
        return self.busy[host]


class Site:
    """A served model in an operator's world. Its clock moves between rounds alone."""

    def __init__(self, meter, pods=("a",)):
        self.small, self.world, self.version, self.now = SmallWorld(facts=FACTS), World(), 1, 1000.0
        self.looks = []
        self.small.settle()
        self.small.roll_out()
        for name in pods:
            self.small.add_ready_expert(name, "demo-000")["status"]["podIP"] = name
        self.rounds = LoadRounds(self.world, meter, self.looks.append, clock=lambda: self.now)
        self.show()

    def show(self):
        """Everything as it is, statuses too, as watches would bring it."""
        self.version += 1
        pods = ({**pod, "kind": "Pod"} for pod in self.small.pods)
        for body in (self.small.model, *self.small.objects.values(), *pods):
            body["metadata"] |= {"namespace": "here", "resourceVersion": str(self.version)}
            body["metadata"].setdefault("labels", {}).setdefault("moe.dev/model", "demo")
            self.world.put(body)

    async def round(self, pass_s=30.0):
        """Some time later a round, and what a look makes of it; returns the models that it named."""
        self.now += pass_s
        self.looks.clear()
        await self.rounds.round()
        self.small.shares = dict(self.world.shares)
        if self.looks:
            self.small.say()
            self.show()
        return list(self.looks)

    def shown(self):
        return self.small.objects[Ref("MoEExpert", "demo-000")].get("status", {}).get("load", "")


async def test_a_model_is_looked_at_when_its_load_moves_and_at_no_other_time():
    meter = Pods(a=5.0)
    site = Site(meter)
    assert await site.round() == []  # one reading tells nothing
    meter.busy["a"] += 15.0
    assert await site.round() == [HERE]
    assert site.shown() == "50%"
    meter.busy["a"] += 15.5
    assert await site.round() == []
    assert await site.round() == [HERE]
    assert site.shown() == "0%"
    assert await site.round() == []


async def test_an_expert_that_can_no_longer_be_read_shows_nothing_and_is_asked_again():
    meter = Pods(a=5.0)
    site = Site(meter)
    await site.round()
    meter.busy["a"] += 15.0
    await site.round()
    del meter.busy["a"]
    assert await site.round() == [HERE]
    assert site.shown() == ""
    assert await site.round() == []
    meter.busy["a"] = 40.0
    assert await site.round() == []  # what passed while it was silent is not of one window
    meter.busy["a"] += 3.0
    assert await site.round() == [HERE]
    assert site.shown() == "10%"


async def test_an_expert_that_is_not_the_model_s_own_shows_no_load_and_causes_no_look():
    meter = Pods(a=5.0)
    site = Site(meter)
    site.small.objects[Ref("MoEExpert", "demo-000")]["metadata"]["ownerReferences"] = []
    site.show()
    await site.round()
    meter.busy["a"] += 15.0
    assert await site.round() == []


async def test_dead_pods_are_told_once_and_not_once_a_round(caplog):
    site = Site(Pods(a=1.0), pods=("a", "dead", "gone"))
    await site.round()
    await site.round()
    told = [each.getMessage() for each in caplog.records if "can't be read" in each.getMessage()]
    assert told == ["the load of 2 pods can't be read: dead: no route to host"]


async def test_only_ready_pods_are_asked():
    meter = Pods(a=1.0)
    site = Site(meter)
    site.small.add_ready_expert("starting", "demo-000", ready=False)
    site.small.add_pod("router", "router", conditions=({"type": "Ready", "status": "True"},))
    site.small.pods[-1]["status"]["podIP"] = "router"
    site.show()
    await site.round()
    assert meter.asked == ["a"]


class SlowPods(Pods):
    """Of which each answers only once `enough` others are being asked; remembers how many were at once."""

    def __init__(self, enough):
        super().__init__()
        self.enough, self.now, self.most = enough, 0, 0
        self.full = asyncio.Event()

    async def busy_s(self, host):
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self.enough:
            self.full.set()
        await self.full.wait()
        await asyncio.sleep(0)
        self.now -= 1
        return 1.0


async def test_many_pods_are_asked_at_once_and_not_all():
    meter = SlowPods(enough=AT_ONCE)
    site = Site(meter, pods=[f"p{number}" for number in range(3 * AT_ONCE)])
    await asyncio.wait_for(site.round(), 60)
    assert meter.most == AT_ONCE


class Broken(Pods):
    """A meter with an error that nobody foresaw, the first time."""

    def __init__(self, again):
        super().__init__()
        self.again = again

    async def busy_s(self, host):
        self.asked.append(host)
        if len(self.asked) == 1:
            raise RuntimeError("unforeseen")
        self.again.set()
        return 1.0


async def test_a_round_that_fails_is_told_and_the_next_one_comes(caplog):
    again = asyncio.Event()
    site = Site(Broken(again))
    keeping = asyncio.create_task(site.rounds.keep(every_s=0.001))
    await asyncio.wait_for(again.wait(), 60)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert "unforeseen" in caplog.text
