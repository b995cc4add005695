//! Workloads made from seeds, comparisons of millrace with other implementations on them, and an
//! emulated wide area network.
//!
//! Nothing here is part of the program. Run it with `make lab`. This crate alone needs Rust 1.91,
//! because of one of the compared crates. `cargo build` leaves it out, and so does `make test` with
//! an older Rust.

#![forbid(unsafe_code)]

pub mod eviction;
pub mod trace;
pub mod wan;
