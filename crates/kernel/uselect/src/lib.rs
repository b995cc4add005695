//! User-level connection tracking: a process reads the readiness of its TCP sockets from memory that
//! the kernel keeps up to date, without a system call while there is work.
//!
//! Kernel Support for Faster Web Proxies, section 2; `docs/design/uselect.md` says how this is done
//! on a kernel without a module of ours. `uselectd` (`crates/kernel/bpf`) loads the programs and
//! hands a process its memory; a process needs no privilege.
//!
//! What it never does: read or write a socket's bytes, or answer for a descriptor that it does not
//! know. Those, and whatever is doubtful, are asked of poll(2).

mod attach;
mod error;
mod kernel;
pub mod layout;
mod limits;
mod pages;
mod poll;
mod select;
mod sleep;
mod socket;
mod tracker;
mod wait;

pub use attach::{Answer, DESCRIPTORS, REQUEST, SOCKET};
pub use error::{Errno, Error};
pub use limits::{OTHERS_UNSEEN_MAX, PASSES_MAX, ROOM_UNSEEN_MAX, WAITS_UNSEEN_MAX};
pub use poll::PollFd;
pub use rustix::net::Shutdown;
pub use select::Sets;
pub use socket::{Socket, State};
pub use tracker::Tracker;
