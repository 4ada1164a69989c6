"""What the grpcio implementation is bounded by."""

from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True)
class WireSettings:
    """Bounds of every stream.

    max_message_bytes: of one message either way; the same as the servers' `--max-message-bytes`.
    max_outbox_bytes: what may wait to be written on one stream; then its peer does not read, and parts fail.
    open_timeout_s: from dialling to the first message of a stream; generous, as a process may be starting.
    """

    max_message_bytes: int = 64 * MEBIBYTE
    max_outbox_bytes: int = 256 * MEBIBYTE
    open_timeout_s: float = 10.0
