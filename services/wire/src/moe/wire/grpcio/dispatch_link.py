"""A router's stream to one expert endpoint; used from the loop only."""

from typing import Protocol

from moe.api.expert.v1 import expert_pb2, expert_pb2_grpc
from moe.wire.grpcio.link import Link, LinkState
from moe.wire.port import FailureKind, PartFailure
from moe.wire.settings import WireSettings


class DispatchNews(Protocol):
    """Who wants to know what becomes of dispatches."""

    def dispatch_opened(self, endpoint: str, instance: str) -> None:
        """A process answers at the endpoint."""

    def receipt_came(self, endpoint: str, receipt: expert_pb2.Receipt) -> None:
        """One dispatch was dealt with."""

    def dispatch_lost(self, endpoint: str, kind: FailureKind, message: str) -> None:
        """The stream is gone, and what was sent on it without a receipt."""


class DispatchLink:
    """The stream. What is sent while it is being opened waits for it; between attempts nothing can be sent."""

    def __init__(self, endpoint: str, news: DispatchNews, settings: WireSettings) -> None:
        self.endpoint = endpoint
        self.instance: str | None = None
        self.queued_rows = 0
        self._news = news
        self._settings = settings
        self._reason = ""
        self.link: Link[expert_pb2.DispatchRequest, expert_pb2.DispatchResponse] = Link(
            endpoint, lambda channel: expert_pb2_grpc.ExpertServiceStub(channel).Dispatch(), self, settings
        )

    def send(self, request: expert_pb2.DispatchRequest) -> PartFailure | None:
        """Sends a dispatch; or says at once why it can't be."""
        if self.link.state is LinkState.WAITING:
            return self._failure(request, FailureKind.UNREACHABLE, self._reason)
        if not self.link.send(request, request.ByteSize()):
            reason = f"the expert does not read: {self._settings.max_outbox_bytes} bytes wait for it"
            return self._failure(request, FailureKind.FAILED, reason)
        return None

    def opened(self, first: expert_pb2.DispatchResponse) -> None:
        """See LinkEnd."""
        self.instance = first.opened.instance
        self._news.dispatch_opened(self.endpoint, self.instance)

    def received(self, response: expert_pb2.DispatchResponse) -> None:
        """See LinkEnd."""
        self.queued_rows = response.receipt.queued_rows
        self._news.receipt_came(self.endpoint, response.receipt)

    def lost(self, message: str) -> None:
        """See LinkEnd."""
        kind = FailureKind.UNREACHABLE if self.instance is None else FailureKind.STREAM_LOST
        self.instance, self.queued_rows, self._reason = None, 0, message
        self._news.dispatch_lost(self.endpoint, kind, message)

    async def close(self) -> None:
        """Ends the stream for good."""
        self.lost("the endpoint was removed")
        await self.link.close()

    def _failure(self, request: expert_pb2.DispatchRequest, kind: FailureKind, reason: str) -> PartFailure:
        return PartFailure(request.part, self.endpoint, kind, f"{self.endpoint}: {reason}")
