//! Workloads made from seeds, comparisons of millrace with other implementations on them, a load
//! generator, an emulated wide area network, and a profiler of CPU time.
//!
//! Nothing here is part of the program. Run it with `make lab`. This crate alone needs Rust 1.91,
//! because of one of the compared crates. `cargo build` leaves it out, and so does `make test` with
//! an older Rust.

#![forbid(unsafe_code)]

pub mod eviction;
pub mod load;
pub mod profile;
pub mod trace;
pub mod wan;
