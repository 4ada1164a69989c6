"""The aggregators that collect from this expert: one stream by name, the newest wins; used from the loop only."""

import logging
from collections.abc import AsyncIterator
from typing import TypeAlias

from moe.api.expert.v1 import expert_pb2
from moe.runtime.errors import FailedPrecondition, InvalidRequest
from moe.wire.dispatches import LONGEST_AGGREGATOR_NAME
from moe.wire.grpcio.outbox import Done
from moe.wire.grpcio.server_stream import Context, ServerStream, first_message
from moe.wire.port import FailureKind

CollectStream: TypeAlias = ServerStream[expert_pb2.CollectRequest, expert_pb2.CollectResponse]

logger = logging.getLogger("moe.wire")


class Subscriptions:
    """instance: this process's identity. max_bytes: of partials that may wait for one aggregator."""

    def __init__(self, instance: str, max_bytes: int) -> None:
        self._instance = instance
        self._max_bytes = max_bytes
        self._streams: dict[str, CollectStream] = {}

    async def serve(self, requests: AsyncIterator[expert_pb2.CollectRequest], context: Context) -> None:
        """Registers a Collect stream until it ends."""
        hello = await first_message(requests)
        name = hello.aggregator if hello else ""
        if not 1 <= len(name) <= LONGEST_AGGREGATOR_NAME:
            raise InvalidRequest(
                f"got {len(name)} characters, want a name of 1 to {LONGEST_AGGREGATOR_NAME}", field="aggregator"
            )
        stream: CollectStream = ServerStream(context, self._max_bytes)
        self._replace(name, stream)
        stream.send(expert_pb2.CollectResponse(subscribed=expert_pb2.Subscribed(instance=self._instance)))
        try:
            await stream.run(requests, _no_second_message, stream.until_ended)
        finally:
            if self._streams.get(name) is stream:
                del self._streams[name]

    def push(self, aggregator: str, response: expert_pb2.CollectResponse, done: Done) -> tuple[FailureKind, str] | None:
        """Queues a partial; `done` is called when it was written, or won't be. Returns why it can't be queued."""
        stream = self._streams.get(aggregator)
        if stream is None:
            return FailureKind.NO_COLLECTOR, f"aggregator {aggregator!r} has no Collect stream open here"
        if stream.send(response, done):
            return None
        return FailureKind.FAILED, f"aggregator {aggregator!r} does not read: {self._max_bytes} bytes wait for it"

    def end_all(self) -> None:
        """Ends every stream once what is queued is written."""
        for stream in self._streams.values():
            stream.end()

    def _replace(self, name: str, stream: CollectStream) -> None:
        old = self._streams.get(name)
        if old is not None:
            logger.info("aggregator %s opened a new Collect stream; its old one ends", name)
            old.end(FailedPrecondition(f"another Collect stream named {name!r} was opened; names must be unique"))
        self._streams[name] = stream


def _no_second_message(request: expert_pb2.CollectRequest) -> None:
    raise InvalidRequest("a Collect stream takes one message, this is another; open a second stream for another name")
