"""Settings of an aggregator process."""

from dataclasses import dataclass
from typing import Literal

from moe.discovery.source import HELP as DISCOVERY_HELP
from moe.runtime.server import ServerSettings
from moe.runtime.settings import setting
from moe.runtime.telemetry import TelemetrySettings
from moe.wire.settings import MEBIBYTE, CombinerLimits

_DEFAULTS = CombinerLimits()
_LARGEST_ENVELOPE = MEBIBYTE // 4
"""Room in an answer's message for the list of missing parts and their reasons."""


@dataclass(frozen=True)
class AggregatorSettings:
    """One aggregator's process."""

    server: ServerSettings
    telemetry: TelemetrySettings
    name: str = setting(help="Name of this process in the plan, such as agg-0.")
    discovery: str = setting(help=DISCOVERY_HELP)
    wire: Literal["auto", "native", "grpcio"] = setting(
        "auto",
        help="Implementation of the streams between the parts: native is fastest and needs `make setup` with a Rust "
        "toolchain, grpcio is always there; auto is native where it is built. Parts may differ.",
    )
    deterministic: bool = setting(
        False, help="Says so in Describe; parts are added in one fixed order either way, at no extra cost."
    )
    threads: int = setting(
        1, help="Threads to add with; one, as adding is bound by memory and the experts need the cores.", minimum=1
    )
    max_open_calls: int = setting(
        _DEFAULTS.open_calls,
        help="Most layer calls open at a time; a router has one or a few, so this is hundreds of routers.",
        unit="calls",
        minimum=1,
    )
    max_held_bytes: int = setting(
        _DEFAULTS.held_bytes,
        help="Most memory for parts that wait for the rest of their call; beyond it parts are refused and sent again.",
        unit="bytes",
        minimum=1024,
    )
    early_part_timeout_s: float = setting(
        _DEFAULTS.early_seconds,
        help="How long a part waits for its plan, which was sent before it.",
        unit="seconds",
        minimum=0.0,
    )

    def limits(self) -> CombinerLimits:
        """What the combiner holds at most."""
        longest = self.server.max_message_bytes
        return CombinerLimits(
            open_calls=self.max_open_calls,
            answer_bytes=longest - min(longest // 4, _LARGEST_ENVELOPE),
            held_bytes=self.max_held_bytes,
            early_bytes=min(self.max_held_bytes, _DEFAULTS.early_bytes),
            early_seconds=self.early_part_timeout_s,
            closed_calls=_DEFAULTS.closed_calls,
        )
