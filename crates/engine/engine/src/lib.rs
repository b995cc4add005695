//! The interface between a worker and the kernel. A worker queues operations, each with a token,
//! and the engine returns their completions with these tokens.
//!
//! All access of the data plane to sockets, pipes, the clock, random numbers and the access log
//! goes through the trait [`Engine`]. This crate implements it over epoll ([`EpollEngine`]),
//! io_uring ([`UringEngine`]), uselect ([`UselectEngine`]) and, for comparison, poll(2) and
//! select(2) ([`PollEngine`], [`SelectEngine`]); the crate `test/sim` implements it over a
//! simulated kernel. The crates that use this one make no system call of their own while they serve
//! requests.
//!
//! The crate never interprets the bytes that it moves.

#![forbid(unsafe_code)]

mod buffer;
mod clock;
mod engine;
mod epoll;
mod error;
mod file_read;
mod limits;
mod log;
mod mailbox;
mod poll_select;
mod random;
mod readiness;
mod send_source;
mod shared_bytes;
mod table;
mod time;
mod timers;
mod token;
mod uring;
mod uselect;

pub use buffer::{Budget, Buffer, Charge, HeldBytes};
pub use clock::Clock;
pub use engine::{
    Address, Completion, CompletionEvent, Engine, Fd, PathEstimate, ShutdownHow, Wake,
};
pub use epoll::{EpollEngine, EpollWatch};
pub use error::{Error, Unsupported};
pub use file_read::{FilePart, FileRead};
pub use log::{LogFile, LogSink};
pub use mailbox::{MailboxReceiver, MailboxSender, PeerMailboxes, mailbox, mailbox_mesh};
pub use poll_select::{LevelWatch, PollEngine, PollWatch, SelectEngine, SelectWatch};
pub use readiness::{EngineOptions, EngineStats, EventWaker, ReadinessEngine, Watch, WatchEvent};
pub use send_source::{HeldSource, SendSource};
pub use shared_bytes::SharedBytes;
pub use table::{Key, Table};
pub use time::Instant;
pub use timers::{TimerId, Timers};
pub use token::{Token, TokenKind};
pub use uring::{ReservedRing, UringEngine, UringWatch};
pub use uselect::{UselectEngine, UselectWatch, is_tracked, register_process, wait_for_daemon_end};
