//! The kernel's side of user-level connection tracking: eBPF programs, their loader, and the daemon
//! that has the privileges for both.
//!
//! The programs are in `programs/`, in C. The daemon loads the compiled object in `objects/`, which
//! is committed, so a build needs no compiler for eBPF. `scripts/bpf-objects` rebuilds the object,
//! and a test compares it with the sources.
//!
//! Descriptors of the daemon own everything that is loaded and attached, and nothing is pinned.
//! When the daemon ends, the kernel removes all of it.

mod bpf;
mod cgroup;
mod daemon;
mod error;
mod limits;
mod listen;
mod log;
mod peer;
mod placeholder;
mod policy;
mod privileges;
mod programs;
mod regions;
mod signals;
mod sweep;
mod zombies;

pub use daemon::Daemon;
pub use error::Error;
pub use limits::{REGIONS_MAX, REGIONS_PER_USER};
pub use policy::AccessPolicy;
pub use privileges::{check_privileges, drop_privileges};
pub use signals::block_termination_signals;
