"""A router's way to a combiner: over a stream to an aggregator, or inside this process; used from the loop only."""

from collections.abc import Callable
from typing import Protocol

from moe.api.aggregator.v1 import aggregator_pb2, aggregator_pb2_grpc
from moe.runtime.errors import InvalidRequest
from moe.wire.combining import (
    Answered,
    CallKey,
    CallPlan,
    CallWasRejected,
    CombineEvent,
    PartWasRefused,
    SourceWasLost,
)
from moe.wire.grpcio.collector import Collector
from moe.wire.grpcio.combiner_host import CombinerHost
from moe.wire.grpcio.link import Link
from moe.wire.plans import read_answer, write_plan
from moe.wire.port import CallFailed, Combined, Outcome
from moe.wire.settings import WireSettings

Request = aggregator_pb2.CombineRequest
Response = aggregator_pb2.CombineResponse


class CombineNews(Protocol):
    """Who wants to know what a combiner says. place: the aggregator's endpoint, None for the one inside."""

    def call_ended(self, key: CallKey, outcome: Outcome) -> None:
        """A call has its outcome."""

    def part_refused(self, key: CallKey, part: int, reason: str) -> None:
        """A part arrived and can't be used."""

    def source_lost(self, place: str | None, instance: str) -> None:
        """What an expert process sent lately may not have arrived."""

    def aggregator_lost(self, place: str, message: str) -> None:
        """The aggregator's stream is gone, and every call that was open there."""


class CombineLink:
    """The stream to one aggregator. A call that comes before it is open waits for it, or fails with it."""

    def __init__(self, endpoint: str, router: str, news: CombineNews, settings: WireSettings) -> None:
        self.endpoint = endpoint
        self.collector: str | None = None
        self._news = news
        self._waiting: list[Callable[[], object]] = []
        hello = Request(hello=aggregator_pb2.Hello(router=router))
        self.link: Link[Request, Response] = Link(
            endpoint,
            lambda channel: aggregator_pb2_grpc.AggregatorServiceStub(channel).Combine(),
            self,
            settings,
            hello=hello,
        )

    def when_open(self, action: Callable[[], object]) -> None:
        """Does something now, or when the stream opens; dropped if it can't be opened."""
        if self.collector is not None:
            action()
        else:
            self._waiting.append(action)

    def plan(self, plan: CallPlan, now: float) -> bool:
        """A layer call begins; False when the aggregator has stopped reading."""
        return self._send(Request(plan=write_plan(plan, now)))

    def give_up(self, key: CallKey, part: int, reason: str) -> None:
        """No replica will deliver a part."""
        given = aggregator_pb2.GiveUp(call_id=key.call_id, layer=key.layer, part=part, reason=reason)
        self.when_open(lambda: self._send(Request(give_up=given)))

    def abandon(self, key: CallKey) -> None:
        """Nobody waits for a call."""
        if self.collector is not None:
            self._send(Request(abandon=aggregator_pb2.Abandon(call_id=key.call_id, layer=key.layer)))

    def opened(self, first: Response) -> None:
        """See LinkEnd."""
        self.collector = first.ready.instance
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()

    def received(self, response: Response) -> None:
        """See LinkEnd."""
        match response.WhichOneof("kind"):
            case "combined":
                self._combined(response.combined)
            case "part_refused":
                refused = response.part_refused
                self._news.part_refused(CallKey(refused.call_id, refused.layer), refused.part, refused.reason)
            case "source_lost":
                self._news.source_lost(self.endpoint, response.source_lost.instance)
            case "failed":
                failed = response.failed
                key = CallKey(failed.call_id, failed.layer)
                self._news.call_ended(key, CallFailed(failed.message, failed.deadline))

    def lost(self, message: str) -> None:
        """See LinkEnd."""
        self.collector = None
        self._waiting.clear()
        self._news.aggregator_lost(self.endpoint, message)

    async def close(self) -> None:
        """Ends the stream for good."""
        self.lost("the endpoint was removed")
        await self.link.close()

    def _combined(self, message: aggregator_pb2.Combined) -> None:
        key = CallKey(message.call_id, message.layer)
        try:
            self._news.call_ended(key, read_answer(message))
        except InvalidRequest as error:
            self._news.call_ended(key, CallFailed(f"{self.endpoint}: {error.message}", deadline=False))

    def _send(self, request: Request) -> bool:
        return self.link.send(request, request.ByteSize())


class EmbeddedCombiner:
    """The combiner inside this process, behind the same methods as a stream. name: under which experts know it."""

    def __init__(self, host: CombinerHost, collector: Collector, news: CombineNews) -> None:
        self.collector: str | None = collector.name
        self._owner = collector.name
        self._host = host
        self._news = news
        host.attach(collector.name, self._carry)

    def when_open(self, action: Callable[[], object]) -> None:
        """Does something now."""
        action()

    def plan(self, plan: CallPlan, now: float) -> bool:
        """A layer call begins."""
        self._host.plan(self._owner, plan)
        return True

    def give_up(self, key: CallKey, part: int, reason: str) -> None:
        """No replica will deliver a part."""
        self._host.give_up(key, part, reason)

    def abandon(self, key: CallKey) -> None:
        """Nobody waits for a call."""
        self._host.abandon(key)

    def _carry(self, event: CombineEvent) -> None:
        match event:
            case Answered():
                self._news.call_ended(event.key, Combined(event.rows, event.missing))
            case PartWasRefused():
                self._news.part_refused(event.key, event.part, event.reason)
            case SourceWasLost():
                self._news.source_lost(None, event.instance)
            case CallWasRejected():
                self._news.call_ended(event.key, CallFailed(event.message, event.deadline))


Combiner = CombineLink | EmbeddedCombiner
