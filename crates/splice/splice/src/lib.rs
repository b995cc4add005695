//! Bodies that move through pipes instead of user memory: when that pays, the pipes, and the
//! splicing of connections as an interface of its own.
//!
//! A body is spliced a pipe at a time: what its source has goes into an empty pipe at once
//! ([`Pipe::fill`]), and from there to its sink, behind whatever head or chunk size has to go first
//! ([`Pipe::drain_after`]). So a pipe is held only while bytes are in it: who waits for a slow
//! source holds none. Bytes in a pipe have left the origin and not reached the client; nothing can
//! be taken back, and a transfer that breaks off closes its pipe with what is in it.
//!
//! [`Splicer`] is the data-stream splicing of the paper that docs/papers.md names, section 3, for
//! any program: connections are spliced one way or both ways, with or without a copy for the
//! application, until a limit or a close, and unspliced with exact counts. Ours is the paper's
//! interface and its avoidance of copies over splice(2) and tee(2). The paper forwarded in
//! interrupt context, from a kernel module; here the application drives every transfer, with about
//! two system calls for a pipe full of bytes.
//!
//! This crate owns the thresholds, the choice and the pipes. It never looks at a byte of a body,
//! and does not know what a message is: that stays with the transfers of the proxy.

#![forbid(unsafe_code)]

mod arrival_pattern;
mod direction;
mod direction_state;
#[cfg(test)]
mod engines;
mod kernel;
pub mod limits;
mod pipes;
mod pool;
mod request;
mod splicer;
mod thresholds;
mod transfer;

pub use arrival_pattern::{ArrivalPattern, MoveMethod};
pub use kernel::{Linux, LinuxPipe, Result, SocketEvent, SystemCalls};
pub use millrace_sys::{Errno, TcpState};
pub use pipes::{FillResult, Pipe, Pipes};
pub use request::{
    DirectionResult, End, Error, Handle, KeepCopy, Notice, Released, Request, Side, SpliceMode,
    SpliceOutcome,
};
pub use splicer::Splicer;
pub use thresholds::{NEVER, Thresholds};

/// The example of README.md, as a test of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
