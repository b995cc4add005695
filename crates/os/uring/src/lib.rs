//! io_uring(7): the one wrapper of it, in the two ways in which it is used here.
//!
//! [`Ring`] is one thread's: it watches descriptors and moves bytes. [`PollRing`] is shared by
//! threads that take turns, and only polls. Neither decides anything, and both stand on the same
//! queues.

mod mapping;
mod poll_ring;
mod queues;
mod ring;

pub use poll_ring::{PollCompletion, PollRing, RingGuard};
pub use ring::{DisabledRing, Ring, RingCompletion};

/// What every function here gives: a value, or the kernel's error number (errno(3)).
pub type Result<T> = std::result::Result<T, rustix::io::Errno>;
