"""The aggregator's end of the wire over grpcio: routers' plans in, answers out, partials collected from the experts."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence

import grpc
from moe.api.aggregator.v1 import aggregator_pb2, aggregator_pb2_grpc
from moe.runtime.errors import InvalidRequest
from moe.runtime.front import Front
from moe.wire.combining import (
    Answered,
    CallKey,
    CallWasRejected,
    CombineEvent,
    CombinerStats,
    Combining,
    PartWasRefused,
    SourceWasLost,
)
from moe.wire.grpcio.collector import Collector
from moe.wire.grpcio.combiner_host import CombinerHost
from moe.wire.grpcio.loop_thread import post
from moe.wire.grpcio.server_stream import Context, ServerStream, first_message
from moe.wire.plans import read_plan, write_answer
from moe.wire.settings import WireSettings


class AggregatorServer(aggregator_pb2_grpc.AggregatorServiceServicer):
    """Serves a combiner. instance: this process's identity, new at each start.

    Experts know the aggregator by `<name>.<instance>`, which `Ready` tells the routers: a part that was meant for an
    earlier life of this name finds no collector, and is no silent loss. Made and used on the server's loop.
    """

    name = "grpcio"
    front: Front | None = None

    def __init__(self, combiner: Combining, name: str, instance: str, settings: WireSettings | None = None) -> None:
        self._settings = settings or WireSettings()
        self._collect_name = f"{name}.{instance}"
        self._host = CombinerHost(combiner)
        self._collector = Collector(self._collect_name, self._host, self._settings)
        self._streams: dict[str, _CombineStream] = {}
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server that runs on the same loop."""
        aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(self, server)

    def set_experts(self, endpoints: Sequence[str]) -> None:
        """The expert endpoints that exist now, ready or not. From any thread."""
        post(self._loop, self._collector.set_endpoints, tuple(endpoints))

    async def Combine(  # type: ignore[override]  # noqa: N802 - a coroutine that writes itself
        self, request_iterator: AsyncIterator[aggregator_pb2.CombineRequest], context: Context
    ) -> None:
        """A router's stream; its open calls are abandoned with it."""
        hello = await first_message(request_iterator)
        if hello is None or hello.WhichOneof("kind") != "hello":
            raise InvalidRequest("the first message of a Combine stream has to be hello", field="kind")
        owner = f"{hello.hello.router}#{next(self._numbers)}"
        stream = _CombineStream(context, owner, self._host, self._settings.max_outbox_bytes)
        self._streams[owner] = stream
        try:
            await stream.run(request_iterator, self._collect_name)
        finally:
            del self._streams[owner]
            self._host.detach(owner)

    def stats(self) -> CombinerStats:
        """The combiner's figures."""
        return self._host.combiner.stats()

    def sources(self) -> int:
        """Collect streams that are open."""
        return self._collector.sources()

    async def drained(self) -> None:
        """Lets each router's open calls be answered, then ends its stream: for `on_drain`."""
        await asyncio.gather(*(stream.end_when_settled() for stream in self._streams.values()))

    async def close(self) -> None:
        """Ends the streams to the experts."""
        self._host.close()
        await self._collector.close()


class _CombineStream:
    """One router's stream, and the owner of its calls in the combiner."""

    def __init__(self, context: Context, owner: str, host: CombinerHost, max_bytes: int) -> None:
        self._stream: ServerStream[aggregator_pb2.CombineRequest, aggregator_pb2.CombineResponse]
        self._stream = ServerStream(context, max_bytes)
        self._owner = owner
        self._host = host
        self._open: set[CallKey] = set()
        self._settled = asyncio.Event()
        self._settled.set()

    async def run(self, requests: AsyncIterator[aggregator_pb2.CombineRequest], collect_name: str) -> None:
        self._host.attach(self._owner, self._carry)
        self._stream.send(aggregator_pb2.CombineResponse(ready=aggregator_pb2.Ready(instance=collect_name)))
        await self._stream.run(requests, self._handle, self._until_settled)

    async def end_when_settled(self) -> None:
        await self._settled.wait()
        self._stream.end()

    async def _until_settled(self) -> None:
        await self._settled.wait()

    def _handle(self, request: aggregator_pb2.CombineRequest) -> None:
        match request.WhichOneof("kind"):
            case "plan":
                self._plan(request.plan)
            case "give_up":
                given = request.give_up
                self._host.give_up(CallKey(given.call_id, given.layer), given.part, given.reason)
            case "abandon":
                key = CallKey(request.abandon.call_id, request.abandon.layer)
                self._host.abandon(key)
                self._close(key)
            case other:
                raise InvalidRequest(f"got {other or 'nothing'}, want plan, give_up or abandon", field="kind")

    def _plan(self, message: aggregator_pb2.Plan) -> None:
        key = CallKey(message.call_id, message.layer)
        self._open.add(key)
        self._settled.clear()
        try:
            plan = read_plan(message, time.monotonic())
        except InvalidRequest as error:
            self._carry(CallWasRejected(self._owner, key, error.message))
        else:
            self._host.plan(self._owner, plan)

    def _carry(self, event: CombineEvent) -> None:
        if isinstance(event, Answered | CallWasRejected):
            self._close(event.key)
        if not self._stream.send(_response(event)):
            self._stream.fail_unread("the router")

    def _close(self, key: CallKey) -> None:
        self._open.discard(key)
        if not self._open:
            self._settled.set()


def _response(event: CombineEvent) -> aggregator_pb2.CombineResponse:
    match event:
        case Answered():
            return aggregator_pb2.CombineResponse(combined=write_answer(event))
        case PartWasRefused(_, key, part, reason):
            refused = aggregator_pb2.PartRefused(call_id=key.call_id, layer=key.layer, part=part, reason=reason)
            return aggregator_pb2.CombineResponse(part_refused=refused)
        case SourceWasLost(_, instance):
            return aggregator_pb2.CombineResponse(source_lost=aggregator_pb2.SourceLost(instance=instance))
        case CallWasRejected(_, key, message, deadline):
            failed = aggregator_pb2.CombineFailed(
                call_id=key.call_id, layer=key.layer, deadline=deadline, message=message
            )
            return aggregator_pb2.CombineResponse(failed=failed)
