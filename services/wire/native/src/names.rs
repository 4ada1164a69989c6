//! The ways that the three streams are called by on the wire.

pub const DISPATCH: &str = "/moe.expert.v1.ExpertService/Dispatch";
pub const COLLECT: &str = "/moe.expert.v1.ExpertService/Collect";
pub const COMBINE: &str = "/moe.aggregator.v1.AggregatorService/Combine";
pub const LONGEST_AGGREGATOR_NAME: usize = 256;
