//! The laboratory: workloads made from seeds, and millrace beside its peers on them.
//!
//! Nothing here is part of the program. `make lab` is its door. It alone needs Rust 1.91, for a peer;
//! so `cargo build` leaves it out, and `make test` does with an older Rust.

#![forbid(unsafe_code)]

pub mod eviction;
pub mod trace;
