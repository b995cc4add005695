//! Binary upgrade: a new process takes over the listening sockets of a running one, and at every
//! moment one of them accepts. The running process never starts another program. The operator
//! starts the new process, which connects to the admin Unix socket.
//!
//! ```text
//!    new                                        running
//!     │ POST /upgrade, Upgrade: VERSION ──────────> │ is it the same user, or root?
//!     │ <────────────────── 101, or a refusal       │ one at a time
//!     │ <──── sockets, NotifyConfig, OfferEnd       │
//!     │ opens the rest, starts its workers          │ both accept from here on
//!     │ Ready ────────────────────────────────────> │ closes its admin addresses
//!     │ <──────────────────────────── HandedOver    │ its workers stop accepting and drain
//!     │ <──────────────────── end of the stream     │ its workers have closed the sockets
//!     │ polls each socket once more                 │ exits when drained
//! ```
//!
//! Before `HandedOver` the running process can continue unchanged, and does so if the new one ends,
//! fails or is too slow. After `HandedOver` the new process owns everything.

mod frame;
mod offer;
mod predecessor;
mod successor;

use std::time::Duration;

pub(crate) use frame::TakeoverChannel;
pub(crate) use offer::{Offer, TicketOffer};
pub(crate) use predecessor::offer_takeover;
pub(crate) use successor::Takeover;

/// The upgrade token (RFC 9110 section 7.8) of the HTTP request that starts the protocol. A new
/// version of the protocol gets a new token.
pub(crate) const PROTOCOL: &str = "millrace-takeover/1";
/// The path of the request.
pub(crate) const PATH: &str = "/upgrade";
/// Limit of the sockets handed over: 64 listeners with 64 workers.
const SOCKETS_MAX: usize = 4096;
/// Time that one side waits for the next frame of the other.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from the offer until the workers of the new process must listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);
