"""The router's end of the native wire, as the engine's thread uses it.

The calling thread itself drives the streams while it waits, with the interpreter's lock given back; the thread of a
caretaker serves them between calls.
"""

import asyncio
from collections.abc import Sequence

import moe_wire_native
from moe.runtime.process import new_instance_id
from moe.wire.combining import CombinerStats
from moe.wire.native.closing import close_at_exit
from moe.wire.native.memory import tensor_of
from moe.wire.port import (
    AggregatorLost,
    CallFailed,
    Combined,
    FailureKind,
    Incomplete,
    LayerCall,
    MissingPart,
    Outcome,
    PartFailure,
    Places,
    RoutedCall,
    Target,
)
from moe.wire.settings import CombinerLimits, WireSettings


class RouterClient:
    """Implements moe.wire.port.RouterWire and RoutedWire.

    combiner: bounds of the one inside, for calls with no aggregator. loop: not needed, as nothing here runs on one.
    """

    name = "native"

    def __init__(
        self,
        router: str,
        *,
        combiner: CombinerLimits | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        settings: WireSettings | None = None,
    ) -> None:
        del loop
        self._native = moe_wire_native.Router(f"{router}.{new_instance_id()}", combiner, settings or WireSettings())
        close_at_exit(self._native)
        self._places: Places | None = None
        self._native_places = moe_wire_native.Places((), ())

    def exchange(self, call: LayerCall, targets: Sequence[Target], aggregator: str | None, until: float) -> Outcome:
        """See RouterWire."""
        return _outcome(self._native.exchange(call, targets, aggregator, until))

    def exchange_routed(self, call: RoutedCall, until: float) -> Outcome | None:
        """See RoutedWire. ValueError for tensors that don't fit together, or an expert without a place."""
        if call.places is not self._places:
            self._native_places = moe_wire_native.Places(call.places.part_of_expert, call.places.endpoints)
            self._places = call.places
        answer = self._native.exchange_routed(call, self._native_places, until)
        return None if answer is None else _outcome(answer)

    def give_up(self, call: LayerCall, part: int, reason: str) -> None:
        """See RouterWire."""
        self._native.give_up(call, part, reason)

    def abandon(self, call: LayerCall) -> None:
        """See RouterWire."""
        self._native.abandon(call)

    def queued_rows(self, endpoint: str) -> int:
        """See RouterWire."""
        return self._native.queued_rows(endpoint)

    def set_endpoints(self, experts: Sequence[str], aggregators: Sequence[str]) -> None:
        """See RouterWire. From any thread."""
        self._native.set_endpoints(list(experts), list(aggregators))

    def combiner_stats(self) -> CombinerStats | None:
        """Figures of the combiner inside; None where there is none."""
        figures = self._native.combiner_figures()
        return None if figures is None else CombinerStats(*figures)

    def close(self) -> None:
        """See RouterWire. From any thread; a call that waits in another one is lost."""
        self._native.close()

    async def aclose(self) -> None:
        """`close`, for a loop that must not wait."""
        await asyncio.to_thread(self.close)


def _outcome(answer: moe_wire_native.Answer) -> Outcome:
    if answer.rows is not None:
        rows = tensor_of(answer.rows)
        return Combined(rows, tuple(MissingPart(*missing) for missing in answer.missing))
    return _without_rows(answer)


def _without_rows(answer: moe_wire_native.Answer) -> Outcome:
    if answer.kind == "incomplete":
        failures = (
            PartFailure(part, endpoint, FailureKind(kind), message, wait_s)
            for part, endpoint, kind, message, wait_s in answer.failures
        )
        return Incomplete(tuple(failures))
    if answer.kind == "aggregator_lost":
        return AggregatorLost(answer.message)
    return CallFailed(answer.message, answer.deadline)
