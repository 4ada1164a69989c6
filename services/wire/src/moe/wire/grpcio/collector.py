"""Collects partials: one Collect stream to every expert endpoint, fed into a combiner; used from the loop only."""

import asyncio
from collections.abc import Sequence

from moe.api.expert.v1 import expert_pb2, expert_pb2_grpc
from moe.runtime.errors import InvalidRequest
from moe.runtime.tensors import from_message
from moe.wire.combining import CallKey
from moe.wire.grpcio.combiner_host import CombinerHost
from moe.wire.grpcio.link import Link, LinkState
from moe.wire.settings import WireSettings


class Collector:
    """name: under which experts know this collector; new at each start, or a stream of an earlier life could get parts.

    The streams are dialled whether the experts are ready or not, and again with back-off.
    """

    def __init__(self, name: str, host: CombinerHost, settings: WireSettings) -> None:
        self.name = name
        self._host = host
        self._settings = settings
        self._ends: dict[str, _CollectEnd] = {}
        self._known: dict[str, str] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def set_endpoints(self, endpoints: Sequence[str]) -> None:
        """The experts that exist now: dials new ones, closes the streams to others."""
        for gone in self._ends.keys() - set(endpoints):
            end = self._ends.pop(gone)
            end.lost("the endpoint was removed")
            task = asyncio.get_running_loop().create_task(end.link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for endpoint in endpoints:
            if endpoint in self._ends:
                self._ends[endpoint].link.redial()
            else:
                self._ends[endpoint] = _CollectEnd(endpoint, self.name, self._host, self._settings, self._known)

    def sources(self) -> int:
        """Streams that are open."""
        return sum(end.link.state is LinkState.OPEN for end in self._ends.values())

    async def close(self) -> None:
        """Ends all streams."""
        ends, self._ends = list(self._ends.values()), {}
        await asyncio.gather(*(end.link.close() for end in ends), *self._closing)


class _CollectEnd:
    """One Collect stream. known: which process was last subscribed to, by endpoint.

    The source counts as lost both when the stream breaks and when the same process is subscribed to again: in between,
    it may have pushed to a stream that it did not yet know to be broken.
    """

    def __init__(
        self, endpoint: str, name: str, host: CombinerHost, settings: WireSettings, known: dict[str, str]
    ) -> None:
        self._endpoint = endpoint
        self._host = host
        self._known = known
        self._instance: str | None = None
        self.link: Link[expert_pb2.CollectRequest, expert_pb2.CollectResponse] = Link(
            endpoint,
            lambda channel: expert_pb2_grpc.ExpertServiceStub(channel).Collect(),
            self,
            settings,
            hello=expert_pb2.CollectRequest(aggregator=name),
        )

    def opened(self, first: expert_pb2.CollectResponse) -> None:
        """Subscribed."""
        instance = self._instance = first.subscribed.instance
        again = self._known.get(self._endpoint) == instance
        self._known[self._endpoint] = instance
        if again:
            self._host.source_lost(instance)

    def received(self, response: expert_pb2.CollectResponse) -> None:
        """A partial came."""
        partial = response.partial
        key = CallKey(partial.call_id, partial.layer)
        try:
            rows = from_message(partial.rows, field="rows")
        except InvalidRequest as error:
            self._host.broken_part(key, partial.part, error.message)
        else:
            self._host.part(key, partial.part, rows)

    def lost(self, message: str) -> None:
        """The stream broke."""
        instance, self._instance = self._instance, None
        if instance is not None:
            self._host.source_lost(instance)
