//! Generates the messages from the project's .proto sources, the same that moe.api is generated from.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../../proto");
    let files = [
        "moe/expert/v1/expert.proto",
        "moe/aggregator/v1/aggregator.proto",
    ];
    for file in ["moe/tensor/v1/tensor.proto"].iter().chain(&files) {
        println!("cargo:rerun-if-changed={}", root.join(file).display());
    }
    let descriptors = protox::compile(files, [&root])?;
    prost_build::Config::new()
        .bytes(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
