//! Splicing of TCP connections and of message bodies: moving bytes through pipes instead of user
//! memory.
//!
//! A body is spliced one pipe at a time. [`Pipe::fill`] moves the bytes that have arrived into an
//! empty pipe. [`Pipe::drain_after`] sends a header or chunk size, and then the bytes of the pipe.
//! So a connection uses a pipe only while bytes are in it, and none while its source is slow. Bytes
//! in a pipe have left the source and not reached the sink, and cannot be put back. A transfer that
//! fails closes its pipe together with these bytes.
//!
//! [`Splicer`] implements data-stream splicing, section 3 of the paper "Kernel Support for Faster
//! Web Proxies" (docs/papers.md), for any program. It splices connections in one direction or both,
//! with or without a copy for the application, until a limit or a close. An unsplice returns exact
//! counts. In the paper, a kernel module forwards in interrupt context. Here, the application
//! drives every transfer by splice(2) and tee(2), with about two system calls for a full pipe.
//!
//! This crate owns the thresholds, the choice between copying and splicing, and the pipes. It never
//! interprets the bytes of a body, and knows no messages: headers and framing are up to the
//! transfers of the proxy.

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

/// The example of README.md, compiled as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct SpliceReadme;
