//! A new process takes the listening sockets of a running one over, without a moment in which
//! nobody accepts: binary upgrade. The running process never starts another program; the new one
//! is started by whoever upgrades, and asks at the admin Unix socket.
//!
//! ```text
//!    new                                        running
//!     │ POST /upgrade, Upgrade: VERSION ──────────> │ is it the same user, or root?
//!     │ <────────────────── 101, or a refusal       │ one at a time
//!     │ <──── Sockets..., Manager, Offered          │
//!     │ opens the rest, starts its workers          │ both accept from here on
//!     │ Ready ────────────────────────────────────> │ leaves its admin addresses
//!     │ <──────────────────────────────── Yours     │ its workers accept no more, drain
//!     │ <──────────────────── end of the stream     │ its workers have closed the sockets
//!     │ looks once more behind each socket          │ ends when drained
//! ```
//!
//! Until `Yours` the running process can go on as if nothing had happened, and does whenever the
//! new one ends, fails or is too slow. From `Yours` on all is the new one's.

mod frame;
mod offer;
mod predecessor;
mod successor;

use std::time::Duration;

pub(crate) use frame::TakeoverChannel;
pub(crate) use offer::Offer;
pub(crate) use predecessor::offer_takeover;
pub(crate) use successor::Takeover;

/// What the two sides speak; another version is another name. An upgrade token (RFC 9110 section
/// 7.8) of the HTTP request that begins it.
pub(crate) const PROTOCOL: &str = "millrace-takeover/1";
/// The path that is asked for.
pub(crate) const PATH: &str = "/upgrade";
/// The most listening sockets that are handed over: 64 listeners of 64 workers each.
const SOCKETS_MAX: usize = 4096;
/// How long one side waits for the other's next word.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the new process may take from the offer until its workers listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);
