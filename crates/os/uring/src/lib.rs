//! A wrapper of io_uring(7), for the two ways in which it is used here.
//!
//! A [`Ring`] belongs to one thread. It watches descriptors and moves bytes. A [`PollRing`] is
//! shared by threads that use it in turn, and only polls. Both are built on the same queues, and
//! neither makes decisions for its caller.

mod mapping;
mod poll_ring;
mod queues;
mod ring;

pub use poll_ring::{PollCompletion, PollRing, RingGuard};
pub use ring::{DisabledRing, Ring, RingCompletion};

/// The result of a system call: a value, or the kernel's error number (errno(3)).
pub type Result<T> = std::result::Result<T, rustix::io::Errno>;
