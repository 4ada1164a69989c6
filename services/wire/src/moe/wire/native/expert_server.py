"""The expert's end of the native wire: a front for the gRPC server, and a port for the compute thread.

The compute thread drives the streams inside `next_batch`; batches are computed there too, without the interpreter, once
the kernels' entries are known. A caretaker's thread drives while the compute thread is busy for long.
"""

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence

import grpc
import moe_wire_native
from moe.runtime.front import Front
from moe.wire.ends import DRAIN_QUIET_S, Computed
from moe.wire.native.closing import close_at_exit
from moe.wire.native.memory import tensor_of
from moe.wire.port import Batch, ExpertLimits, QueueStats, WorkItem
from moe.wire.settings import WireSettings
from torch import Tensor

_LOOK_S = 0.01
_LAST_WRITES_S = 2.0


class ExpertServer:
    """Implements moe.wire.ends.ExpertEnd. instance: this process's identity, new at each start."""

    name = "native"

    def __init__(self, limits: ExpertLimits, instance: str, settings: WireSettings | None = None) -> None:
        self._native = moe_wire_native.Expert(instance, limits, settings or WireSettings())
        self._closed = False
        self.front: Front | None = self
        close_at_exit(self._native)

    def register(self, server: grpc.aio.Server) -> None:
        """See Served: nothing, as the streams never get to the gRPC server."""

    def serve(self, listener: socket.socket, back_end: str) -> None:
        """See Front."""
        self._native.serve(listener.detach(), back_end)

    async def stop(self) -> None:
        """See Front."""
        self._closed = True
        await asyncio.to_thread(self._native.close)

    def next_batch(self, timeout_s: float) -> Batch | None:
        """See ExpertWire."""
        taken = self._native.next_batch(timeout_s)
        if taken is not None:
            layer, batch, items = taken
            return Batch(layer, tuple(_item(layer, batch, item) for item in items))
        if self._closed:
            time.sleep(min(timeout_s, _LOOK_S))  # nothing waits in there any more
        return None

    def finish(self, batch: Batch, partials: Sequence[Tensor]) -> None:
        """See ExpertWire. The partials are the wire's from now on. ValueError when they don't belong to the batch."""
        for item, rows in zip(batch.items, partials, strict=True):
            _check(item, rows)
        self._native.finish(_ticket(batch), list(partials))

    def fail(self, batch: Batch, message: str) -> None:
        """See ExpertWire."""
        self._native.fail(_ticket(batch), message)

    def compute_natively(self, entries: Mapping[int, tuple[int, int]], threads: int) -> bool:
        """See ExpertEnd."""
        for layer, (function, handle) in entries.items():
            self._native.set_kernel(layer, function, handle, threads)
        return True

    def computed(self) -> Computed:
        """See ExpertEnd."""
        return Computed(*self._native.computed())

    def drain(self) -> None:
        """See ExpertWire. From any thread."""
        self._native.drain()

    def stats(self) -> QueueStats:
        """See ExpertWire."""
        return QueueStats(*self._native.stats())

    async def drained(self) -> None:
        """See Served."""
        self._native.drain()
        while not self._native.is_settled(DRAIN_QUIET_S):  # noqa: ASYNC110 - may be cut off, unlike a thread that waits
            await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(self._native.drained, _LAST_WRITES_S)


def _item(layer: int, batch: moe_wire_native.Batch, item: "moe_wire_native.Item") -> WorkItem:
    call_id, part, aggregator, rows, slot_rows, slot_experts, slot_weights, partial_dtype, deadline = item
    return WorkItem(
        call_id=call_id,
        layer=layer,
        part=part,
        aggregator=aggregator,
        rows=tensor_of(rows),
        slot_rows=tensor_of(slot_rows),
        slot_experts=tensor_of(slot_experts),
        slot_weights=tensor_of(slot_weights),
        partial_dtype=partial_dtype,
        deadline=deadline,
        ticket=batch,
    )


def _ticket(batch: Batch) -> moe_wire_native.Batch:
    ticket = batch.items[0].ticket
    assert isinstance(ticket, moe_wire_native.Batch), "the batch comes from another wire"
    return ticket


def _check(item: WorkItem, rows: Tensor) -> None:
    if rows.dtype != item.partial_dtype or rows.shape != item.rows.shape:
        got, want = f"{rows.dtype} {list(rows.shape)}", f"{item.partial_dtype} {list(item.rows.shape)}"
        raise ValueError(f"partial of layer {item.layer}, part {item.part}: got {got}, want {want}")
