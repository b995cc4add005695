//! How a worker meets the kernel: operations are queued as data, completions come back by token.
//!
//! [`Engine`] is the one door of the data plane to sockets, pipes, the clock, randomness and the
//! access log. Its instances are [`Epoll`] here and the simulated kernel in `tools/sim`. Nothing
//! above this crate calls the kernel while it serves requests.
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
mod random;
mod table;
mod time;
mod timers;
mod token;

pub use buffer::{Budget, Buffer, Charge, Held};
pub use clock::Clock;
pub use engine::{Address, Completion, Engine, Event, Fd, HowToShut, Wake};
pub use epoll::{Counters, Epoll, EpollOptions, EpollWaker};
pub use error::Error;
pub use log::LogSink;
pub use mailbox::{Inbox, Mail, Outbox, mailbox, mesh};
pub use table::{Key, Table};
pub use time::Instant;
pub use timers::{TimerId, Timers};
pub use token::{Kind, Token};
