"""The router's end of the wire over grpcio, as the engine's thread uses it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from moe.runtime.process import new_instance_id
from moe.wire.combining import CallKey, CombinerStats, Combining
from moe.wire.dispatches import write_dispatch
from moe.wire.grpcio.loop_thread import post, shared_loop
from moe.wire.grpcio.router_streams import Dispatch, OpenExchange, RouterStreams
from moe.wire.mailbox import Mailbox
from moe.wire.plans import plan_of
from moe.wire.port import AggregatorLost, FailureKind, Incomplete, LayerCall, Outcome, PartFailure, Target
from moe.wire.settings import WireSettings

_ENVELOPE_BYTES = 1024
"""Room for what the sender adds to a message: the aggregator's name."""

_CLOSE_TIMEOUT_S = 30.0


class RouterClient:
    """Implements moe.wire.port.RouterWire.

    loop: where the streams live, running in another thread; a process that serves over grpc.aio passes its server's, as
    grpc.aio is at ease on one loop only. Without one the streams live on a loop that the process shares.
    combiner: for calls with no aggregator.
    """

    name = "grpcio"

    def __init__(
        self,
        router: str,
        *,
        combiner: Combining | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        settings: WireSettings | None = None,
    ) -> None:
        self._settings = settings or WireSettings()
        self._loop = loop or shared_loop().loop
        self._combiner = combiner
        self._open: dict[CallKey, OpenExchange] = {}
        self._closed = False
        self._streams = self._on_loop(partial(RouterStreams, f"{router}.{new_instance_id()}", combiner, self._settings))

    def exchange(self, call: LayerCall, targets: Sequence[Target], aggregator: str | None, until: float) -> Outcome:
        """See RouterWire."""
        if self._closed:
            return AggregatorLost("this router's wire is closed")
        key = CallKey(call.call_id, call.layer)
        known = self._open.get(key)
        exchange = known or OpenExchange(plan_of(call), aggregator, Mailbox(call.deadline))
        self._open[key] = exchange
        dispatches = self._write(call, targets, exchange.mailbox)
        post(self._loop, self._streams.send if known else self._streams.begin, exchange, dispatches)
        outcome = exchange.mailbox.fetch(until)
        if not isinstance(outcome, Incomplete):
            self._forget(exchange)
        return outcome

    def give_up(self, call: LayerCall, part: int, reason: str) -> None:
        """See RouterWire."""
        exchange = self._open.get(CallKey(call.call_id, call.layer))
        if exchange:
            post(self._loop, self._streams.give_up, exchange, part, reason)

    def abandon(self, call: LayerCall) -> None:
        """See RouterWire."""
        exchange = self._open.get(CallKey(call.call_id, call.layer))
        if exchange:
            self._forget(exchange)

    def queued_rows(self, endpoint: str) -> int:
        """See RouterWire."""
        return self._streams.queued_rows(endpoint)

    def set_endpoints(self, experts: Sequence[str], aggregators: Sequence[str]) -> None:
        """See RouterWire. From any thread."""
        post(self._loop, self._streams.set_endpoints, tuple(experts), tuple(aggregators))

    def combiner_stats(self) -> CombinerStats | None:
        """Figures of the combiner inside; None where there is none."""
        return self._combiner.stats() if self._combiner else None

    def close(self) -> None:
        """See RouterWire. On the loop's own thread, await `aclose` instead."""
        if not self._closed:
            asyncio.run_coroutine_threadsafe(self.aclose(), self._loop).result(_CLOSE_TIMEOUT_S)

    async def aclose(self) -> None:
        """Ends all streams, on the loop; calls that are open are lost."""
        self._closed = True
        await self._streams.close()

    def _write(self, call: LayerCall, targets: Sequence[Target], mailbox: Mailbox) -> list[Dispatch]:
        """The messages for the parts; one that is too long for a message fails instead."""
        parts = {part.part: part for part in call.parts}
        dispatches = []
        for target in targets:
            request = write_dispatch(call, parts[target.part], time.monotonic())
            size, most = request.ByteSize(), self._settings.max_message_bytes - _ENVELOPE_BYTES
            if size <= most:
                dispatches.append(Dispatch(target.endpoint, request))
            else:
                message = f"a dispatch of {size} bytes, the bound is {most}; send fewer rows in a layer call"
                mailbox.fail(PartFailure(target.part, target.endpoint, FailureKind.INVALID, message))
        return dispatches

    def _forget(self, exchange: OpenExchange) -> None:
        del self._open[exchange.plan.key]
        post(self._loop, self._streams.abandon, exchange)

    def _on_loop(self, make: Callable[[], RouterStreams]) -> RouterStreams:
        """Makes the streams on the loop, whichever thread this is."""
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        return make() if here is self._loop else asyncio.run_coroutine_threadsafe(_call(make), self._loop).result()


async def _call(make: Callable[[], RouterStreams]) -> RouterStreams:
    return make()
