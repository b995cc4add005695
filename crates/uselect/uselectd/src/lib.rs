//! eBPF programs, and who loads them: the kernel's side of user-level connection tracking, and the
//! daemon that has the privileges for it.
//!
//! The programs are in `programs/`, in C; what is loaded is `objects/`, which is committed, so that
//! building needs no compiler for them. `scripts/bpf-objects` makes it anew, and a test compares.
//!
//! What is loaded and attached is owned by descriptors of the daemon, and is gone with it. Nothing
//! is pinned.

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
