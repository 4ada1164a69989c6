//! What every stream is bounded by; as moe.wire.grpcio.settings.

use std::time::Duration;

/// Window of a stream and of a connection: a layer's rows flow without a round trip, and a peer that is only served
/// inside a call need not be asked for more room.
pub const WINDOW_BYTES: u32 = 64 << 20;

/// Longest HTTP/2 frame that is accepted: large messages in few pieces.
pub const FRAME_BYTES: u32 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Of one message, either way.
    pub max_message_bytes: usize,
    /// What may wait to be written on one stream; beyond it the peer does not read, and parts fail.
    pub max_outbox_bytes: usize,
    /// From dialling to the first message of a stream.
    pub open_timeout: Duration,
    /// Silence after which a peer is asked for a sign of life.
    pub keepalive: Duration,
    /// How long a peer may take to give it: it may be in the middle of a long computation.
    pub keepalive_timeout: Duration,
    /// Streams at once on one accepted connection.
    pub max_concurrent_streams: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_message_bytes: 64 << 20,
            max_outbox_bytes: 256 << 20,
            open_timeout: Duration::from_secs(10),
            keepalive: Duration::from_secs(600),
            keepalive_timeout: Duration::from_secs(120),
            max_concurrent_streams: 1024,
        }
    }
}
