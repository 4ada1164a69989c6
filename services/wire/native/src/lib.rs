//! The wire of moe in native code: layer calls leave a router, are worked on by experts and come back combined without
//! the interpreter. Standard gRPC over the same .proto as the grpcio implementation, with which it mixes freely.
//!
//! The pure parts (`combiner`, `queue`, `ledger`, `routing`) read no clock and do no I/O; `router`, `collector`, `aggregator` and
//! `expert` carry them over `link` and `serve`; `python` is the door to moe.wire.native.

pub mod aggregator;
pub mod backoff;
pub mod codec;
pub mod collector;
pub mod combiner;
pub mod driver;
pub mod expert;
pub mod host;
pub mod ledger;
pub mod link;
pub mod logs;
pub mod names;
pub mod outbox;
#[cfg(feature = "python")]
mod python;
pub mod queue;
pub mod quiet;
pub mod router;
pub mod routing;
pub mod serve;
pub mod settings;
pub mod sums;
pub mod tensors;

/// The messages, generated from the .proto sources.
#[allow(clippy::all, missing_docs, rustdoc::all)]
pub mod api {
    pub mod moe {
        pub mod tensor {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/moe.tensor.v1.rs"));
            }
        }
        pub mod expert {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/moe.expert.v1.rs"));
            }
        }
        pub mod aggregator {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/moe.aggregator.v1.rs"));
            }
        }
    }
    pub use moe::{aggregator::v1 as aggregator, expert::v1 as expert, tensor::v1 as tensor};
}
