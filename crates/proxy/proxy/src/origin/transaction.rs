//! The part of an exchange at the origin: one request, its retries, and the response.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_engine::Instant;
use millrace_http1::{Framing, HeadScan};

use crate::origin::{Dial, OriginId, OriginUse, PickReason};

/// The phase of a request at its origin.
///
/// ```text
///  Start                     ──> Requesting                over an idle connection
///  Start                     ──> Dialing, then Requesting  over a new connection
///  Dialing                   ──> Securing, then Requesting over a new connection with TLS
///  Start                     ──> Resolving, then Dialing   the name is looked up first
///  Start                     ──> Queued, then Start        the origin has no free connection
///  Start                     ──> Pipelined, then Requesting  behind other requests
///  Pipelined                 ──> Displaced, then Start     its response cannot come any more
///  Start, Resolving, Dialing ──> WaitListed                this process lacks resources
///  WaitListed                ──> Start                     there may be resources again
///  Start                     ──> AtProgram                 a program has the request, or will have
///  AtProgram, Requesting     ──> Responding                the final response header has arrived
///  any phase                 ──> Start                     a retry
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    /// No origin was picked yet, or a wait is over.
    #[default]
    Start,
    /// The exchange is in the wait list: this process had no resources to open a connection.
    WaitListed,
    /// The exchange is in the queue of its origin, which has as many connections as it may have.
    Queued,
    /// The request was sent behind others, whose responses come first.
    Pipelined,
    /// The request was sent behind others and will get no response there.
    Displaced,
    /// The name of the origin is being looked up.
    Resolving,
    /// A connection is being opened.
    Dialing,
    /// The TLS handshake is in progress.
    Securing,
    /// A program has the request, or it waits for room in the program's channel.
    AtProgram,
    /// The request is being sent or was sent; the header of the final response is not complete.
    Requesting,
    /// The header of the final response was received.
    Responding,
}

/// The state of an exchange at its origin.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) phase: Phase,
    /// The origin that was picked and that the exchange has not left.
    pub(crate) origin: Option<OriginId>,
    /// Why that origin was picked. Reset when the outcome is recorded.
    pub(crate) pick_reason: PickReason,
    /// The use of a connection, until the response was read to its end.
    pub(crate) connection: Option<OriginUse>,
    /// The configured origin that was picked last. The exchange may have left it since.
    pub(crate) configured_origin: Option<OriginId>,
    /// The address of the connection or of the latest attempt; `None` for a Unix socket, and before
    /// the first attempt.
    pub(crate) address: Option<SocketAddr>,
    /// When the header of the final response was received.
    pub(crate) responded_at: Option<Instant>,
    /// Whether the connection served an earlier request, so that the origin may have closed it
    /// before it received this one.
    pub(crate) is_reused: bool,
    /// Whether [`Origins::reserve_connection`](super::Origins::reserve_connection) has counted a
    /// connection that is not open yet.
    pub(crate) has_reservation: bool,
    /// The addresses of the origin, once its name was looked up.
    pub(crate) addresses: Option<Arc<[IpAddr]>>,
    /// The connection that is being opened.
    pub(crate) dial: Option<Box<Dial>>,
    /// The number of tries before this one.
    pub(crate) earlier_tries: u32,
    /// The place of the request behind others, in the phase `Pipelined`.
    pub(crate) place: Option<OriginUse>,
    /// The connections that this try may use.
    pub(crate) usable: UsableConnections,
    /// The origin at which the previous try failed.
    pub(crate) failed_origin: Option<OriginId>,
    /// When the exchange entered the wait list for the first time. Reset when it has a connection.
    pub(crate) wait_listed_since: Option<Instant>,
    /// How far the bytes of the response header were scanned.
    pub(crate) scan: HeadScan,
    /// Whether the header of a response, final or interim, had bare LF line ends or folded values.
    /// Another recipient may parse such a header differently. Such a response is not stored and
    /// updates no stored response, and its connection serves no other request.
    pub(crate) is_ambiguous: bool,
    /// Whether the response is a local redirect of a program.
    pub(crate) is_local_redirect: bool,
    /// Whether the response names a file that the client gets instead.
    pub(crate) names_file: bool,
    /// The number of unread bytes that arrived before the last byte of the request body was sent.
    /// The bytes of interim responses are subtracted. If the number is not 0 in the end, the final
    /// response began early. Such an origin may never read the body, and may take the rest of it
    /// for the next request.
    pub(crate) early_bytes: usize,
    /// Whether the request had an Upgrade field. The origin may switch only to a protocol that the
    /// field offered.
    pub(crate) upgrade_sent: bool,
    /// The number of interim responses; at most [`INTERIM_MAX`].
    pub(crate) interim_count: u32,
    /// The framing of the response body.
    pub(crate) framing: Framing,
    /// When the present wait for a response header began: the request was sent, an interim response
    /// was received, or the exchange became the first of its connection.
    pub(crate) awaiting_since: Instant,
}

/// The connections that a try may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum UsableConnections {
    /// An idle one, a new one, or one on which other requests come first.
    #[default]
    Any,
    /// An idle or a new one. The previous try was behind other requests and got no response.
    Unshared,
    /// Only a new one: the origin had closed the idle connection of the previous try, and may have
    /// closed the others as well.
    New,
}

/// The most interim responses to one request. No server has a reason to send as many.
pub(crate) const INTERIM_MAX: u32 = 64;

impl Transaction {
    /// Returns whether the exchange has picked an origin or is in the wait list.
    pub(crate) fn is_open(&self) -> bool {
        self.origin.is_some() || self.phase == Phase::WaitListed
    }

    /// Takes the connection that the transaction uses, to the origin at `address`.
    pub(crate) fn use_connection(
        &mut self,
        origin_use: OriginUse,
        address: Option<SocketAddr>,
        is_reused: bool,
    ) {
        (self.connection, self.address) = (Some(origin_use), address);
        self.is_reused = is_reused;
        self.wait_listed_since = None;
    }
}
