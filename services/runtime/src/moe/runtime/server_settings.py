"""Settings of a gRPC server and the channel arguments that they mean."""

from dataclasses import dataclass

from moe.runtime.settings import setting

MEBIBYTE = 1024 * 1024
_WINDOW_BYTES = 64 * MEBIBYTE

ChannelOptions = list[tuple[str, str | int]]


@dataclass(frozen=True)
class ServerSettings:
    """The gRPC server: where it listens and what it accepts."""

    listen: str = setting(help="Address to serve on, unix:/absolute/path or host:port; port 0 takes a free one.")
    max_message_bytes: int = setting(
        64 * MEBIBYTE,
        help="Longest message to accept or send; room for 16384 rows of 2048 bfloat16 elements.",
        unit="bytes",
        minimum=1024,
        maximum=2**31 - 1,
    )
    drain_timeout_s: float = setting(
        30.0,
        help="How long calls in flight may take to finish before they are cut off; a pod's default grace period.",
        unit="seconds",
        minimum=0.0,
        maximum=86400.0,
    )
    max_concurrent_streams: int = setting(
        1024,
        help="Calls at once on one connection; bounds what one peer can hold open, far above what moe's parts use.",
        unit="streams",
        minimum=1,
        maximum=2**31 - 1,
    )
    keepalive_s: float = setting(
        600.0,
        help="Silence after which a peer is asked for a sign of life, to notice a vanished machine; long, as a native "
        "peer answers only inside a call. 0 never asks.",
        unit="seconds",
        minimum=0.0,
        maximum=86400.0,
    )
    keepalive_timeout_s: float = setting(
        120.0,
        help="How long a peer that was asked for a sign of life may take to give it, before its streams count as lost; "
        "long, as it may be in the middle of a computation.",
        unit="seconds",
        minimum=0.1,
        maximum=86400.0,
    )
    hang_after_s: float = setting(
        120.0,
        help="Silence of the serving loop, without processor time, after which health says that the process hangs; a "
        "loop that computes has twenty times as long.",
        unit="seconds",
        minimum=1.0,
        maximum=86400.0,
    )


def server_options(settings: ServerSettings) -> ChannelOptions:
    """Channel arguments of a server.

    Without SO_REUSEPORT a port in use is an error and not a shared port. Pings of clients are welcome as often as
    every ten seconds. A window of 64 MiB lets a layer's rows flow without a round trip.
    """
    return [
        *_message_options(settings.max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
        *_keepalive_options(settings.keepalive_s, settings.keepalive_timeout_s),
    ]


def client_options(
    max_message_bytes: int = 64 * MEBIBYTE, keepalive_s: float = 600.0, keepalive_timeout_s: float = 120.0
) -> ChannelOptions:
    """Channel arguments of a client.

    The authority is named because over a unix socket grpcio would send the path, which tonic refuses
    (RST_STREAM, PROTOCOL_ERROR). The back-off is short: peers are near, and restart. What gRPC calls the least back-off
    is how long an attempt to connect may take, and no wait before the next: a far or busy peer needs its seconds.
    """
    return [
        *_message_options(max_message_bytes),
        ("grpc.default_authority", "localhost"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        *_keepalive_options(keepalive_s, keepalive_timeout_s),
    ]


def _message_options(max_message_bytes: int) -> ChannelOptions:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
    ]


def _keepalive_options(keepalive_s: float, timeout_s: float) -> ChannelOptions:
    """As often and as patient as the settings say.

    By itself gRPC asks an idle peer twice and from then on once a minute, and waits a minute for the answer to any
    ping, whatever the time-out of keep-alive is.
    """
    if keepalive_s <= 0:
        return []
    timeout_ms = max(1, round(timeout_s * 1000))
    return [
        ("grpc.keepalive_time_ms", max(1000, round(keepalive_s * 1000))),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
