//! One request at an origin: how far it has come, and what it may still try.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_engine::Instant;
use millrace_http1::{Framing, HeadScan};

use crate::origin::{Dial, OriginId, OriginUse, PickReason};

/// How far a request has come at its origin.
///
/// ```text
///  Start ──> Naming ──> Dialing ──> Asked ──> Answered
///   │ ^ └───────┬──────────^│ ^       │
///   │ └──────── Waiting <───┘ │       │ once more, on another connection: back to Start
///   │ └──────── Queued        │       │
///   └── an idle connection ───┴───────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    /// No origin was picked yet.
    #[default]
    Start,
    /// No connection could be opened for want of room: it is in the wait list.
    WaitListed,
    /// Its origin has as many connections as it may have: it is in that origin's queue.
    Queued,
    /// Its name is being looked up.
    Resolving,
    /// A connection is being opened.
    Dialing,
    /// The request is being sent, or was; the response's header has not ended.
    Requesting,
    /// The header of the final response is there.
    Responding,
}

#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) phase: Phase,
    pub(crate) origin: Option<OriginId>,
    /// Whether that is to find out how it stands. Over with the verdict.
    pub(crate) pick_reason: PickReason,
    /// The use of a connection, from its opening until the response was read.
    pub(crate) connection: Option<OriginUse>,
    /// The configured origin that was picked last, which the exchange may have left since.
    pub(crate) configured_origin: Option<OriginId>,
    /// The address of its connection, or the one tried last; `None`: a Unix socket, or none yet.
    pub(crate) address: Option<SocketAddr>,
    /// When the header of the final response was there.
    pub(crate) responded_at: Option<Instant>,
    /// Whether that connection had served an earlier request: it may have ended in the meantime.
    pub(crate) is_reused: bool,
    /// Whether it is noted at the origin that a connection is being opened.
    pub(crate) has_reservation: bool,
    /// The addresses of the origin, when its name was looked up.
    pub(crate) addresses: Option<Arc<[IpAddr]>>,
    /// The connection being opened.
    pub(crate) dial: Option<Box<Dial>>,
    /// Tries made before this one.
    pub(crate) earlier_tries: u32,
    /// Whether this try takes no idle connection: the one of the try before had ended, and so may
    /// the others have.
    pub(crate) skips_idle: bool,
    /// The origin that the try before this one failed at.
    pub(crate) failed_origin: Option<OriginId>,
    /// Since when it has waited for room, if it had to, until it has a connection.
    pub(crate) wait_listed_since: Option<Instant>,
    /// How far the response's header was looked at.
    pub(crate) scan: HeadScan,
    /// Whether a header of the response, interim ones included, was read from LF line ends or
    /// folded values: another reader may find another message there. The response is neither stored
    /// nor does it update what is stored, and the connection serves no other request.
    pub(crate) is_ambiguous: bool,
    /// Unread bytes that arrived before the last byte of the request body was sent. They stay
    /// counted once they have begun the final response: such an origin may never read the body, and
    /// takes the rest of it for its next request.
    pub(crate) early_bytes: usize,
    /// Whether an Upgrade field was sent on; only what it offered may be switched to.
    pub(crate) upgrade_sent: bool,
    /// Interim responses passed on.
    pub(crate) interim_count: u32,
    /// How the response's body arrives.
    pub(crate) framing: Framing,
    /// When the request, or the latest interim response, was complete.
    pub(crate) awaiting_since: Instant,
}

/// More interim responses than any server has a reason to send for one request.
pub(crate) const INTERIM_MAX: u32 = 64;

impl Transaction {
    /// Whether the exchange has something at an origin, or waits for room to have.
    pub(crate) fn is_open(&self) -> bool {
        self.origin.is_some() || self.phase == Phase::WaitListed
    }
}
