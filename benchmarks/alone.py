"""What a router needs beside itself when there is nobody else: a directory that never changes, a wire without peers."""

from collections.abc import Sequence

from moe.discovery.directory import NO_WISHES, RoutingWishes, Snapshot
from moe.wire.port import LayerCall


class FixedDirectory:
    """Implements moe.discovery.directory.Directory: one snapshot for ever."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def current(self) -> Snapshot:
        """See Directory."""
        return self._snapshot

    def wait_newer(self, version: int, timeout_s: float) -> Snapshot:
        """Nothing ever changes."""
        return self._snapshot

    def wishes(self) -> RoutingWishes:
        """Nobody wishes anything."""
        return NO_WISHES

    def trouble(self) -> str:
        """Nothing can go wrong."""
        return ""

    def close(self) -> None:
        """Nothing is watched."""


class PeerlessWire:
    """moe.wire.port.RouterWire but for `name` and `exchange`: a call is done when `exchange` returns."""

    def give_up(self, call: LayerCall, part: int, reason: str) -> None:
        """Never needed: every part comes."""

    def abandon(self, call: LayerCall) -> None:
        """Nothing is kept."""

    def queued_rows(self, endpoint: str) -> int:
        """Nothing waits."""
        return 0

    def set_endpoints(self, experts: Sequence[str], aggregators: Sequence[str]) -> None:
        """There is nobody to dial."""

    def close(self) -> None:
        """There is nothing to end."""
