"""The aggregator's end of the native wire: complete in native code, on a thread of its own, once it has its socket."""

import asyncio
import socket
import threading
from collections.abc import Sequence

import grpc
import moe_wire_native
from moe.runtime.front import Front
from moe.wire.combining import CombinerStats
from moe.wire.native.closing import close_at_exit
from moe.wire.settings import CombinerLimits, WireSettings

_LOG_S = 0.5
_PATIENCE_S = 86400.0
"""Whoever drains has a limit of its own, after which it stops the front, and that ends the wait."""


class AggregatorServer:
    """Implements moe.wire.ends.AggregatorEnd. combiner: limits of the one in native code.

    instance: this process's identity, new at each start. Experts know the aggregator by `<name>.<instance>`.
    """

    name = "native"

    def __init__(
        self, combiner: CombinerLimits, name: str, instance: str, settings: WireSettings | None = None
    ) -> None:
        self._limits = combiner
        self._name = name
        self._instance = instance
        self._settings = settings or WireSettings()
        self._lock = threading.Lock()
        self._experts: list[str] = []
        self._native: moe_wire_native.Aggregator | None = None
        self._logs: asyncio.Task[None] | None = None
        self.front: Front | None = self

    def register(self, server: grpc.aio.Server) -> None:
        """See Served: nothing, as the streams never get to the gRPC server."""

    def serve(self, listener: socket.socket, back_end: str) -> None:
        """See Front. On the server's loop."""
        native = moe_wire_native.Aggregator(
            self._name, self._instance, self._limits, self._settings, listener.detach(), back_end
        )
        close_at_exit(native)
        with self._lock:
            self._native = native
            native.set_experts(self._experts)
        self._logs = asyncio.get_running_loop().create_task(_hand_over_logs())

    async def stop(self) -> None:
        """See Front."""
        if self._logs:
            self._logs.cancel()
        if self._native:
            await asyncio.to_thread(self._native.close)
        moe_wire_native.hand_over_logs()

    def set_experts(self, endpoints: Sequence[str]) -> None:
        """See AggregatorEnd."""
        with self._lock:
            self._experts = list(endpoints)
            if self._native:
                self._native.set_experts(self._experts)

    def stats(self) -> CombinerStats:
        """See AggregatorEnd."""
        return CombinerStats(*self._native.figures()[0]) if self._native else CombinerStats()

    def sources(self) -> int:
        """See AggregatorEnd."""
        return self._native.figures()[1] if self._native else 0

    async def drained(self) -> None:
        """See Served."""
        if self._native:
            await asyncio.to_thread(self._native.drained, _PATIENCE_S)

    async def close(self) -> None:
        """See AggregatorEnd."""
        await self.stop()


async def _hand_over_logs() -> None:
    """Lines that native code had for the log: its thread never asks for the interpreter's lock."""
    while True:
        await asyncio.sleep(_LOG_S)
        moe_wire_native.hand_over_logs()
