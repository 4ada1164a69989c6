"""A router's Dispatch stream as its expert sees it: one receipt for each dispatch; used from the loop only."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from moe.api.expert.v1 import expert_pb2
from moe.wire.grpcio.server_stream import Context, ServerStream
from moe.wire.port import FailureKind
from moe.wire.receipts import PUSHED, status_of


@dataclass(frozen=True, eq=False)
class Ticket:
    """A dispatch that waits for its receipt, and where that goes."""

    stream: "DispatchStream"
    call_id: int
    layer: int
    part: int


class DispatchStream:
    """The stream. instance: this process's identity."""

    def __init__(self, context: Context, instance: str, max_bytes: int) -> None:
        self._stream: ServerStream[expert_pb2.DispatchRequest, expert_pb2.DispatchResponse]
        self._stream = ServerStream(context, max_bytes)
        self._stream.send(expert_pb2.DispatchResponse(opened=expert_pb2.DispatchOpened(instance=instance)))
        self._unanswered = 0
        self._settled = asyncio.Event()
        self._settled.set()

    async def run(
        self,
        requests: AsyncIterator[expert_pb2.DispatchRequest],
        accept: Callable[[expert_pb2.DispatchRequest], None],
    ) -> None:
        """Serves the stream until it ends. A router that has said its last word still gets all its receipts."""
        await self._stream.run(requests, accept, self.settled)

    def ticket(self, request: expert_pb2.DispatchRequest) -> Ticket:
        """A dispatch came."""
        self._unanswered += 1
        self._settled.clear()
        return Ticket(self, request.call_id, request.layer, request.part)

    def answer(
        self, ticket: Ticket, kind: FailureKind | None, message: str, retry_after_s: float, queued_rows: int
    ) -> None:
        """Sends the receipt. kind: None means pushed."""
        receipt = expert_pb2.Receipt(
            call_id=ticket.call_id,
            layer=ticket.layer,
            part=ticket.part,
            status=PUSHED if kind is None else status_of(kind),
            retry_after_us=round(retry_after_s * 1_000_000),
            message=message,
            queued_rows=queued_rows,
        )
        self._unanswered -= 1
        if not self._unanswered:
            self._settled.set()
        if not self._stream.send(expert_pb2.DispatchResponse(receipt=receipt)):
            self._stream.fail_unread("the router")

    async def settled(self) -> None:
        """Returns when every dispatch is answered."""
        await self._settled.wait()

    def end(self) -> None:
        """Ends the stream once what is queued is written."""
        self._stream.end()
