"""When a collector says that a process's parts may be lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from moe.aggregator.combiner import Combiner
from moe.wire.grpcio.collector import Collector
from moe.wire.grpcio.combiner_host import CombinerHost
from moe.wire.settings import WireSettings
from support.wire_stage import Placement, Stage, ToyExpert, wait_until


class Recorder(Combiner):
    """A combiner that remembers which sources were called lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[str] = []

    def source_lost(self, instance: str, now: float) -> list:
        self.lost.append(instance)
        return super().source_lost(instance, now)


class Watched:
    """A collector on the stage's loop over one expert."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.expert: ToyExpert = stage.expert(0, 1)
        self.recorder = Recorder()
        self.collector = stage.loop.run(self._make())
        self.list_expert()

    async def _make(self) -> Collector:
        return Collector("agg-0.1", CombinerHost(self.recorder), WireSettings())

    def list_expert(self) -> None:
        self._stage.loop.loop.call_soon_threadsafe(self.collector.set_endpoints, [self.expert.endpoint])
        wait_until(lambda: self.collector.sources() == 1, "subscribing")

    def unlist_expert(self) -> None:
        self._stage.loop.loop.call_soon_threadsafe(self.collector.set_endpoints, [])
        wait_until(lambda: self.collector.sources() == 0, "unsubscribing")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    stage = Stage(Placement.UNIX, tmp_path)
    watched = Watched(stage)
    yield watched
    stage.loop.run(watched.collector.close())
    stage.close()


def test_the_first_subscription_loses_nothing(watched: Watched) -> None:
    assert watched.recorder.lost == []


def test_a_process_that_dies_is_lost_once(watched: Watched) -> None:
    before = watched.expert.instance
    watched.expert.kill()
    watched.expert.open()
    wait_until(lambda: watched.collector.sources() == 1, "subscribing to the new process")
    assert watched.recorder.lost == [before]


def test_a_process_that_is_subscribed_to_again_is_lost_both_times(watched: Watched) -> None:
    watched.unlist_expert()
    watched.list_expert()
    assert watched.recorder.lost == [watched.expert.instance] * 2
