//! Bodies that move through pipes instead of user memory: when that pays, and the pipes.
//!
//! A body is spliced a pipe at a time: what its source has goes into an empty pipe at once
//! ([`Pipe::fill`]), and from there to its sink, behind whatever head or chunk size has to go first
//! ([`Pipe::drain_after`]). So a pipe is held only while bytes are in it: who waits for a slow
//! source holds none. Bytes in a pipe have left the origin and not reached the client; nothing can
//! be taken back, and a transfer that breaks off closes its pipe with what is in it.
//!
//! This crate owns the thresholds, the choice and the pool. It never looks at a byte of a body, and
//! does not know what a message is: that stays with the transfers of the proxy.

#![forbid(unsafe_code)]

mod course;
pub mod limits;
mod pipes;

pub use course::{Course, Plan};
pub use pipes::{Fill, Pipe, Pipes};
