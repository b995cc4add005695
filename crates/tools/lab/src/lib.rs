//! The laboratory: workloads made from seeds, and millrace beside its peers on them.
//!
//! Nothing here is part of the program. `cargo run --release -p millrace-lab` is its door.

#![forbid(unsafe_code)]

pub mod eviction;
pub mod trace;
