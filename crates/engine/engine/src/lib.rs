//! How a worker meets the kernel: operations are queued as data, completions come back by token.
//!
//! [`Engine`] is the one door of the data plane to sockets, pipes, the clock, randomness and the
//! access log. Its instances are [`Epoll`] and [`Uring`] here, [`Poll`] and [`Select`] for
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
mod levels;
mod limits;
mod log;
mod mailbox;
mod random;
mod shared;
mod sockets;
mod table;
mod time;
mod timers;
mod token;
mod uring;
mod uselect;

pub use buffer::{Budget, Buffer, Charge, Held};
pub use clock::Clock;
pub use engine::{Address, Completion, Engine, Event, Fd, HowToShut, PathEstimate, Wake};
pub use epoll::{Epoll, EpollWatch};
pub use error::{Error, Unsupported};
pub use levels::{LevelWatch, Poll, PollWatch, Select, SelectWatch};
pub use log::{LogFile, LogSink};
pub use mailbox::{Inbox, Mail, Outbox, mailbox, mesh};
pub use shared::Shared;
pub use sockets::{Counters, EngineOptions, EventWaker, Found, Sockets, Watch};
pub use table::{Key, Table};
pub use time::Instant;
pub use timers::{TimerId, Timers};
pub use token::{Kind, Token};
pub use uring::{ReservedRing, Uring, UringWatch};
pub use uselect::{Uselect, UselectWatch, is_tracked, track, wait_for_loss};
