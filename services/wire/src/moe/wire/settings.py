"""What a wire is bounded by, whatever implements it: its streams, and the combiner that answers over them."""

from dataclasses import dataclass

from moe.runtime.server_settings import ServerSettings

MEBIBYTE = 2**20


@dataclass(frozen=True)
class WireSettings:
    """Bounds of every stream.

    max_message_bytes: of one message either way; the same as the servers' `--max-message-bytes`.
    max_outbox_bytes: what may wait to be written on one stream; then its peer does not read, and parts fail.
    open_timeout_s: from dialling to the first message of a stream; generous, as a process may be starting.
    keepalive_s: silence after which a peer is asked for a sign of life; 0 never asks.
    keepalive_timeout_s: how long it may take to give it, before its streams count as lost.
    max_concurrent_streams: on one accepted connection.
    """

    max_message_bytes: int = 64 * MEBIBYTE
    max_outbox_bytes: int = 256 * MEBIBYTE
    open_timeout_s: float = 10.0
    keepalive_s: float = 600.0
    keepalive_timeout_s: float = 120.0
    max_concurrent_streams: int = 1024

    @classmethod
    def of(cls, server: ServerSettings) -> "WireSettings":
        """The bounds that the server beside the wire has."""
        return cls(
            max_message_bytes=server.max_message_bytes,
            keepalive_s=server.keepalive_s,
            keepalive_timeout_s=server.keepalive_timeout_s,
            max_concurrent_streams=server.max_concurrent_streams,
        )


@dataclass(frozen=True)
class CombinerLimits:
    """What a combiner holds at most. Beyond a bound a call or part is refused by name, never held silently.

    open_calls: layer calls at a time; a router has one or few open, so this is hundreds of routers.
    answer_bytes: of one answer's rows; an answer is one message, and those are bounded at 64 MiB.
    held_bytes: of all parts that wait, for the rest of their call or for their plan.
    early_bytes: of the parts whose plan has not come; they are few unless routers die between dispatch and plan.
    early_seconds: how long a part waits for its plan, which was sent before it.
    closed_calls: calls remembered after their end, so that late parts are known as such.
    """

    open_calls: int = 1024
    answer_bytes: int = 63 * MEBIBYTE
    held_bytes: int = 2048 * MEBIBYTE
    early_bytes: int = 256 * MEBIBYTE
    early_seconds: float = 30.0
    closed_calls: int = 4096
