//! How a worker meets the kernel: operations are queued as data, completions come back by token.
//!
//! [`Engine`] is the one door of the data plane to sockets, pipes, the clock, randomness and the
//! access log. Its instances are [`EpollEngine`] and [`UringEngine`] here, [`PollEngine`] and [`SelectEngine`] for
//! comparison, and the simulated kernel in `test/sim`. Nothing above this crate calls the kernel
//! while it serves requests.
//!
//! The crate never interprets the bytes that it moves.

#![forbid(unsafe_code)]

mod buffer;
mod clock;
mod engine;
mod epoll;
mod error;
mod limits;
mod log;
mod mailbox;
mod poll_select;
mod random;
mod readiness;
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
pub use log::{LogFile, LogSink};
pub use mailbox::{MailboxReceiver, MailboxSender, PeerMailboxes, mailbox, mailbox_mesh};
pub use poll_select::{LevelWatch, PollEngine, PollWatch, SelectEngine, SelectWatch};
pub use readiness::{EngineOptions, EngineStats, EventWaker, ReadinessEngine, Watch, WatchEvent};
pub use shared_bytes::SharedBytes;
pub use table::{Key, Table};
pub use time::Instant;
pub use timers::{TimerId, Timers};
pub use token::{Token, TokenKind};
pub use uring::{ReservedRing, UringEngine, UringWatch};
pub use uselect::{
    UselectEngine, UselectWatch, is_tracked, register_process, wait_for_daemon_exit,
};
