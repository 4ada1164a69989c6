"""The expert's end of the wire over grpcio: a servicer on the server's loop, and a port for the compute thread.

Dispatches are checked whole when they arrive and answered by one receipt each; partials go to the Collect stream of the
aggregator that the dispatch names, and only when one was written there is its part receipted as pushed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import grpc
from moe.api.expert.v1 import expert_pb2, expert_pb2_grpc
from moe.runtime.errors import InvalidRequest
from moe.runtime.front import Front
from moe.runtime.tensors import to_message
from moe.wire.dispatches import read_dispatch
from moe.wire.ends import DRAIN_QUIET_S, Computed
from moe.wire.expert_inbox import ExpertInbox
from moe.wire.grpcio.dispatch_stream import DispatchStream, Ticket
from moe.wire.grpcio.loop_thread import post
from moe.wire.grpcio.server_stream import Context
from moe.wire.grpcio.subscriptions import Subscriptions
from moe.wire.port import Batch, ExpertLimits, FailureKind, QueueStats, WorkItem
from moe.wire.settings import WireSettings
from torch import Tensor

_ENVELOPE_BYTES = 1024
"""Room for what surrounds a tensor in a message."""


class ExpertServer(expert_pb2_grpc.ExpertServiceServicer):
    """Implements moe.wire.port.ExpertWire. instance: this process's identity, new at each start.

    `register` is called on the server's loop; the methods of the port from the compute thread.
    """

    name = "grpcio"
    front: Front | None = None

    def __init__(self, limits: ExpertLimits, instance: str, settings: WireSettings | None = None) -> None:
        self._limits = limits
        self._instance = instance
        self._settings = settings or WireSettings()
        self._inbox = ExpertInbox(limits, self._answer_expired)
        self._streams: set[DispatchStream] = set()
        self._subscriptions = Subscriptions(instance, self._settings.max_outbox_bytes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_asked = float("-inf")

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server that runs on the current loop."""
        self._loop = asyncio.get_running_loop()
        expert_pb2_grpc.add_ExpertServiceServicer_to_server(self, server)

    async def Dispatch(  # type: ignore[override]  # noqa: N802 - a coroutine that writes itself
        self, request_iterator: AsyncIterator[expert_pb2.DispatchRequest], context: Context
    ) -> None:
        """A router's stream; what it has queued is dropped with it."""
        stream = DispatchStream(context, self._instance, self._settings.max_outbox_bytes)
        self._streams.add(stream)
        try:
            await stream.run(request_iterator, lambda request: self._accept(stream, request))
        finally:
            self._streams.discard(stream)
            self._inbox.remove(lambda item: _ticket(item).stream is stream)

    async def Collect(  # type: ignore[override]  # noqa: N802 - a coroutine that writes itself
        self, request_iterator: AsyncIterator[expert_pb2.CollectRequest], context: Context
    ) -> None:
        """An aggregator's stream."""
        await self._subscriptions.serve(request_iterator, context)

    def next_batch(self, timeout_s: float) -> Batch | None:
        """See ExpertWire. Items whose deadline has passed are answered EXPIRED and cost no computation."""
        return self._inbox.next_batch(timeout_s)

    def finish(self, batch: Batch, partials: Sequence[Tensor]) -> None:
        """See ExpertWire. Raises ValueError when the partials don't belong to the batch."""
        finished = [(item, _partial(item, rows)) for item, rows in zip(batch.items, partials, strict=True)]
        self._inbox.measure(batch)
        self._post(self._push, finished)

    def fail(self, batch: Batch, message: str) -> None:
        """See ExpertWire."""
        self._post(self._refuse, batch.items, FailureKind.FAILED, message)

    def compute_natively(self, entries: Mapping[int, tuple[int, int]], threads: int) -> bool:
        """See ExpertEnd: every batch goes through the interpreter here."""
        del entries
        return False

    def computed(self) -> Computed:
        """See ExpertEnd."""
        return Computed()

    def drain(self) -> None:
        """See ExpertWire. From any thread."""
        self._inbox.drain()

    def stats(self) -> QueueStats:
        """See ExpertWire."""
        return self._inbox.stats()

    async def drained(self) -> None:
        """Refuses new dispatches, waits until all accepted ones are answered, ends every stream: for `on_drain`."""
        self.drain()
        self._last_asked = time.monotonic()
        while (silence := time.monotonic() - self._last_asked) < DRAIN_QUIET_S:
            await asyncio.sleep(DRAIN_QUIET_S - silence)
            await asyncio.gather(*(stream.settled() for stream in self._streams))
        for stream in self._streams:
            stream.end()
        self._subscriptions.end_all()

    def _accept(self, stream: DispatchStream, request: expert_pb2.DispatchRequest) -> None:
        """A dispatch came."""
        self._last_asked = time.monotonic()
        ticket = stream.ticket(request)
        if self._inbox.draining:
            self._answer(ticket, FailureKind.DRAINING, "this process is shutting down; take another replica")
            return
        try:
            item = read_dispatch(request, self._limits, time.monotonic(), ticket)
            self._check_partial_size(item)
        except InvalidRequest as error:
            self._inbox.count_invalid()
            self._answer(ticket, FailureKind.INVALID, error.message)
            return
        retry_after_s = self._inbox.offer(item)
        if retry_after_s is not None:
            bound = f"{self._inbox.queued_rows} rows wait, the bound is {self._limits.max_queued_rows}"
            self._answer(ticket, FailureKind.OVERLOADED, f"{bound}; try again later or another replica", retry_after_s)

    def _check_partial_size(self, item: WorkItem) -> None:
        """A partial that no message can carry would break the stream that carries everybody's."""
        size = item.rows.numel() * item.partial_dtype.itemsize
        most = self._settings.max_message_bytes - _ENVELOPE_BYTES
        if size > most:
            raise InvalidRequest(
                f"the partial of {len(item.rows)} rows in {item.partial_dtype} takes {size} bytes, the bound is {most}",
                field="rows",
            )

    def _push(self, finished: Sequence[tuple[WorkItem, expert_pb2.CollectResponse]]) -> None:
        """Hands partials to their aggregators' streams."""
        for item, response in finished:
            failed = self._subscriptions.push(item.aggregator, response, self._receipt_for(item))
            if failed:
                self._refuse([item], *failed)

    def _receipt_for(self, item: WorkItem) -> Callable[[bool], None]:
        """What follows when a partial was written to its aggregator's stream, or the stream ended before."""

        def done(written: bool) -> None:
            if written:
                self._answer(_ticket(item), None)
            else:
                self._refuse([item], FailureKind.NO_COLLECTOR, f"aggregator {item.aggregator!r} ended its stream")

        return done

    def _refuse(self, items: Sequence[WorkItem], kind: FailureKind, message: str) -> None:
        for item in items:
            self._answer(_ticket(item), kind, message)

    def _answer(self, ticket: Ticket, kind: FailureKind | None, message: str = "", retry_after_s: float = 0.0) -> None:
        ticket.stream.answer(ticket, kind, message, retry_after_s, self._inbox.queued_rows)

    def _answer_expired(self, items: Sequence[WorkItem]) -> None:
        """From either thread."""
        self._post(self._refuse, items, FailureKind.EXPIRED, "the deadline passed before the computation began")

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is None:
            raise RuntimeError("register the expert's wire with a server before work can come")
        post(self._loop, function, *arguments)


def _ticket(item: WorkItem) -> Ticket:
    assert isinstance(item.ticket, Ticket), "the item comes from another wire"
    return item.ticket


def _partial(item: WorkItem, rows: Tensor) -> expert_pb2.CollectResponse:
    if rows.dtype != item.partial_dtype or rows.shape != item.rows.shape:
        got, want = f"{rows.dtype} {list(rows.shape)}", f"{item.partial_dtype} {list(item.rows.shape)}"
        raise ValueError(f"partial of layer {item.layer}, part {item.part}: got {got}, want {want}")
    partial = expert_pb2.Partial(call_id=item.call_id, layer=item.layer, part=item.part, rows=to_message(rows))
    return expert_pb2.CollectResponse(partial=partial)
