//! User-level connection tracking: a process reads the readiness of its TCP sockets from memory that
//! the kernel keeps up to date, without a system call while there is work.
//!
//! Kernel Support for Faster Web Proxies, section 2; `docs/design/uselect.md` says how this is done
//! on a kernel without a module of ours. `uselectd` (`crates/uselect/uselectd`) loads the programs
//! and hands a process its memory; a process needs no privilege. Where there is no daemon, io_uring
//! says at least of which sockets the kernel need not be asked ([`Tracker::multishot`]).
//!
//! What it never does: look into the bytes of a socket, or answer for a descriptor that it does not
//! know. Those, and whatever is doubtful, are asked of poll(2).

mod asked;
mod asleep;
mod attach;
mod bitmap;
pub mod bits;
mod deadline;
mod error;
mod filter;
mod hidden;
mod idle;
mod items;
mod kernel;
pub mod layout;
mod limits;
mod pages;
mod passes;
mod poll;
mod pollfd;
mod region;
mod remembered;
mod rings;
mod select;
mod sleep;
mod socket;
mod spin;
mod stats;
mod tracker;
mod turn;
mod view;
mod wait;
mod watcher;
mod worth;

pub use attach::{Answer, CHALLENGE_BYTES, DESCRIPTORS, Mode, REQUEST, SLEEPER, SOCKET};
pub use error::{Errno, Error};
pub use hidden::{Hidden, owns};
pub use items::Event;
pub use kernel::SignalSet;
pub use limits::{PASSES_MAX, PASSES_TIME_MAX, WAITS_UNSEEN_MAX};
pub use pollfd::PollFd;
pub use rustix::net::Shutdown;
pub use select::Sets;
pub use socket::Socket;
pub use stats::Stats;
pub use tracker::{Backend, State, Tracker};
pub use watcher::Watcher;
