"""All streams of a router and its open calls, on the loop: what the engine's thread asks of it is posted here."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from moe.api.expert.v1 import expert_pb2
from moe.wire.combining import CallKey, CallPlan, Combining
from moe.wire.grpcio.collector import Collector
from moe.wire.grpcio.combine_link import CombineLink, Combiner, EmbeddedCombiner
from moe.wire.grpcio.combiner_host import CombinerHost
from moe.wire.grpcio.dispatch_link import DispatchLink
from moe.wire.ledger import CallLedger
from moe.wire.mailbox import Mailbox
from moe.wire.port import AggregatorLost, CallFailed, Combined, FailureKind, Outcome, PartFailure
from moe.wire.receipts import failure_of
from moe.wire.settings import WireSettings


@dataclass(frozen=True, eq=False)
class Dispatch:
    """A part to be sent. The aggregator's name is filled in when it is known."""

    endpoint: str
    request: expert_pb2.DispatchRequest


@dataclass(eq=False)
class OpenExchange:
    """A call between its first exchange and its end. aggregator: its endpoint, None for the one inside."""

    plan: CallPlan
    aggregator: str | None
    mailbox: Mailbox
    ledger: CallLedger = field(default_factory=CallLedger)


class RouterStreams:
    """Implements DispatchNews and CombineNews; made and used on the loop. name: of the router, new at each start."""

    def __init__(self, name: str, combiner: Combining | None, settings: WireSettings) -> None:
        self._name = name
        self._settings = settings
        self._calls: dict[CallKey, OpenExchange] = {}
        self._experts: dict[str, DispatchLink] = {}
        self._aggregators: dict[str, CombineLink] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._host = CombinerHost(combiner) if combiner else None
        self._collector = Collector(name, self._host, settings) if self._host else None
        self._embedded = EmbeddedCombiner(self._host, self._collector, self) if self._host and self._collector else None

    def begin(self, call: OpenExchange, dispatches: Sequence[Dispatch]) -> None:
        """A call's first exchange: the plan goes out, then all parts."""
        combiner = self._combiner(call.aggregator)
        if combiner is None:
            where = "no combiner is inside this router" if call.aggregator is None else "it is not among the endpoints"
            call.mailbox.finish(AggregatorLost(f"aggregator {call.aggregator or 'embedded'}: {where}"))
            return
        self._calls[call.plan.key] = call
        combiner.when_open(lambda: self._begin_open(call, combiner, dispatches))

    def send(self, call: OpenExchange, dispatches: Sequence[Dispatch]) -> None:
        """Further parts of a call."""
        combiner = self._combiner(call.aggregator)
        if combiner is not None and self._calls.get(call.plan.key) is call:
            combiner.when_open(lambda: self._send_all(call, combiner, dispatches))

    def give_up(self, call: OpenExchange, part: int, reason: str) -> None:
        """No replica will deliver a part."""
        combiner = self._combiner(call.aggregator)
        if combiner is not None and self._calls.get(call.plan.key) is call:
            combiner.give_up(call.plan.key, part, reason)

    def abandon(self, call: OpenExchange) -> None:
        """Nobody waits for a call."""
        if self._calls.get(call.plan.key) is not call:
            return
        del self._calls[call.plan.key]
        combiner = self._combiner(call.aggregator)
        if combiner is not None:
            combiner.abandon(call.plan.key)

    def set_endpoints(self, experts: Sequence[str], aggregators: Sequence[str]) -> None:
        """The endpoints that exist now. Something has changed: those that are waited for are dialled at once."""
        for gone in self._experts.keys() - set(experts):
            self._close_later(self._experts.pop(gone))
        for gone in self._aggregators.keys() - set(aggregators):
            self._close_later(self._aggregators.pop(gone))
        for endpoint in experts:
            if endpoint in self._experts:
                self._experts[endpoint].link.redial()
            else:
                self._experts[endpoint] = DispatchLink(endpoint, self, self._settings)
        for endpoint in aggregators:
            if endpoint in self._aggregators:
                self._aggregators[endpoint].link.redial()
            else:
                self._aggregators[endpoint] = CombineLink(endpoint, self._name, self, self._settings)
        if self._collector:
            self._collector.set_endpoints(experts)

    async def close(self) -> None:
        """Ends all streams; calls that are open are lost."""
        self.set_endpoints((), ())
        for key in list(self._calls):
            self.call_ended(key, AggregatorLost("this router's wire is closed"))
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._host and self._collector:
            await self._collector.close()
            self._host.close()

    def queued_rows(self, endpoint: str) -> int:
        """As of the last receipt; from any thread."""
        link = self._experts.get(endpoint)
        return link.queued_rows if link else 0

    def dispatch_opened(self, endpoint: str, instance: str) -> None:
        """See DispatchNews."""
        for call in self._calls.values():
            call.ledger.opened(endpoint, instance)

    def receipt_came(self, endpoint: str, receipt: expert_pb2.Receipt) -> None:
        """See DispatchNews."""
        call = self._calls.get(CallKey(receipt.call_id, receipt.layer))
        failure = call and call.ledger.receipt(receipt.part, endpoint, failure_of(receipt, endpoint))
        if call and failure:
            call.mailbox.fail(failure)

    def dispatch_lost(self, endpoint: str, kind: FailureKind, message: str) -> None:
        """See DispatchNews."""
        for call in self._calls.values():
            call.mailbox.fail(*call.ledger.stream_lost(endpoint, kind, f"{endpoint}: {message}"))

    def call_ended(self, key: CallKey, outcome: Outcome) -> None:
        """See CombineNews."""
        call = self._calls.pop(key, None)
        if call:
            call.mailbox.finish(_checked(outcome, call.plan))

    def part_refused(self, key: CallKey, part: int, reason: str) -> None:
        """See CombineNews."""
        call = self._calls.get(key)
        if call:
            call.mailbox.fail(*call.ledger.refused(part, reason))

    def source_lost(self, place: str | None, instance: str) -> None:
        """See CombineNews."""
        for call in self._calls.values():
            if call.aggregator == place:
                call.mailbox.fail(*call.ledger.source_lost(instance, "the aggregator's stream from it broke"))

    def aggregator_lost(self, place: str, message: str) -> None:
        """See CombineNews."""
        for key in [key for key, call in self._calls.items() if call.aggregator == place]:
            self.call_ended(key, AggregatorLost(f"aggregator {place}: {message}"))

    def _combiner(self, aggregator: str | None) -> Combiner | None:
        return self._embedded if aggregator is None else self._aggregators.get(aggregator)

    def _begin_open(self, call: OpenExchange, combiner: Combiner, dispatches: Sequence[Dispatch]) -> None:
        if self._calls.get(call.plan.key) is call:
            if combiner.plan(call.plan, time.monotonic()):
                self._send_all(call, combiner, dispatches)
            else:
                self.call_ended(call.plan.key, AggregatorLost(f"aggregator {call.aggregator} does not read"))

    def _send_all(self, call: OpenExchange, combiner: Combiner, dispatches: Sequence[Dispatch]) -> None:
        for dispatch in dispatches:
            dispatch.request.aggregator = combiner.collector or ""
            failure = self._send(call, dispatch)
            if failure:
                call.mailbox.fail(failure)

    def _send(self, call: OpenExchange, dispatch: Dispatch) -> PartFailure | None:
        link = self._experts.get(dispatch.endpoint)
        if link is None:
            message = f"{dispatch.endpoint} is not among the endpoints that exist"
            return PartFailure(dispatch.request.part, dispatch.endpoint, FailureKind.UNREACHABLE, message)
        failure = link.send(dispatch.request)
        if failure is None:
            call.ledger.sent(dispatch.request.part, dispatch.endpoint, link.instance)
        return failure

    def _close_later(self, link: DispatchLink | CombineLink) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _checked(outcome: Outcome, plan: CallPlan) -> Outcome:
    """An answer of another shape or dtype than was asked for is none."""
    if not isinstance(outcome, Combined):
        return outcome
    got, want = (outcome.rows.dtype, tuple(outcome.rows.shape)), (plan.dtype, (plan.tokens, plan.hidden))
    return outcome if got == want else CallFailed(f"the aggregator answered {got}, want {want}", deadline=False)
