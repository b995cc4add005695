//! User-level connection tracking: a process reads the readiness of its TCP sockets from memory
//! that the kernel keeps up to date.
//!
//! The design is section 2 of "Kernel Support for Faster Web Proxies". `docs/design/uselect.md`
//! describes how this crate implements it without a kernel module. The daemon `uselectd`
//! (`crates/uselect/uselectd`) loads eBPF programs and shares memory with the process, which needs
//! no privilege. While a socket is ready, most waits then make no system call. Without the daemon,
//! io_uring can still show which sockets are idle ([`Tracker::multishot`]).
//!
//! Waits never read the bytes of a socket. If a descriptor is not tracked, or its state is not
//! certain, a wait calls poll(2).

mod adaptive_gate;
mod bitmap;
pub mod bits;
mod blocking_poll;
mod deadline;
mod error;
mod internal_fd;
mod kernel;
mod kernel_check;
pub mod layout;
mod limits;
mod multishot;
mod pages;
mod poll;
mod poll_cache;
mod poll_set;
mod pollfd;
mod region;
mod registration;
mod ring_requests;
mod select;
mod sleeper;
mod sleeper_pool;
mod socket;
mod spin;
mod stats;
mod tracker;
mod view;
mod wait;
mod watch_list;
mod watcher;
mod yield_before_sleep;

pub use error::{Errno, Error};
pub use internal_fd::{InternalFd, is_internal_fd};
pub use kernel::SignalSet;
pub use limits::{DAEMON_CHECK_WAITS_MAX, KERNEL_CHECK_TIME_MAX, KERNEL_CHECK_WAITS_MAX};
pub use pollfd::PollFd;
pub use registration::{
    CHALLENGE_BYTES, DEFAULT_SOCKET, REPLY_DESCRIPTORS, REQUEST_MAGIC, RING_REQUEST,
    RegistrationReply, TrackingMode,
};
pub use rustix::net::Shutdown;
pub use select::FdSets;
pub use socket::TrackedSocket;
pub use stats::Stats;
pub use tracker::{Backend, SocketState, Tracker};
pub use watch_list::DescriptorEvent;
pub use watcher::Watcher;

/// The example of README.md, compiled as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct UselectReadme;
