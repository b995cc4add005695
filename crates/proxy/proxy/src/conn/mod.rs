//! One client connection: its transport, its state between requests, and the exchanges that it
//! serves. It owns its wire; exchanges borrow that through the core.

pub(crate) mod client;
pub(crate) mod h1;
pub(crate) mod listeners;
pub(crate) mod recv_buffer;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use millrace_engine::{Instant, Key, TimerId};

use crate::conn::{h1::Pipeline, wire::Wire};
use crate::overload::per_client::Client;
use millrace_config::limits::Limits;

/// The state of a client connection.
///
/// ```text
///  accept ──> Greeting ──> Fresh ──> Head ──> Busy ──> Lingering, Breaking ──> closed
///       └────────────────────^         ^        │ └─────────────────────────────^
///                                    Idle <─────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnState {
    /// A PROXY protocol header has to come first.
    ProxyHeader,
    /// No byte has come yet.
    New,
    /// A request was answered, and no byte of the next is there.
    Idle,
    /// A request header has begun and not ended.
    RequestHeader,
    /// At least one exchange is under way.
    Busy,
    /// The last response was sent; what the client still sends is read away, so that it can read
    /// the response before a reset reaches it (RFC 9112 section 9.6).
    Lingering,
    /// What it gets is cut, and only a reset can say so: that waits until the client has what was
    /// sent, and what it still sends is read away.
    ResetPending,
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) wire: Wire,
    /// The client's address, as the PROXY header gave it if one was believed. `None`: a Unix
    /// socket.
    pub(crate) client_address: Option<SocketAddr>,
    /// What the client connected to, as a believed PROXY header gave it; `None`: the engine knows.
    pub(crate) destination: Option<SocketAddr>,
    /// The address that the connection came from.
    pub(crate) peer: Option<SocketAddr>,
    /// The client that it counts for in the limits; `None`: a Unix socket.
    pub(crate) counted_as: Option<Client>,
    pub(crate) state: ConnState,
    /// Whether nothing came of a client that is to be reset since its timer was set.
    pub(crate) is_quiet: bool,
    /// What a client that is to be reset had still to acknowledge at `since`.
    pub(crate) undelivered: u32,
    /// When `standing` began. Of a client that is to be reset: when it was last seen to have
    /// acknowledged enough.
    pub(crate) since: Instant,
    pub(crate) timer: TimerId,
    pub(crate) pipeline: Pipeline,
    /// The number of its listener.
    pub(crate) listener: u16,
}

// An idle connection costs this and no buffer.
const _: () = assert!(size_of::<Conn>() <= 256);

impl Conn {
    /// Moves on to `standing`.
    pub(crate) fn set_state(&mut self, standing: ConnState, now: Instant) {
        self.state = standing;
        self.since = now;
    }

    /// Whether an exchange may have its response sent now: it is the first, and no interim response
    /// is on its way.
    pub(crate) fn may_send(&self, exchange: Key) -> bool {
        self.pipeline.is_first(exchange) && !self.wire.is_sending()
    }

    /// Whether it waits for a request, of which no byte is there.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, ConnState::New | ConnState::Idle)
    }

    /// Whether it waits for a request that may never come. One that has only just been accepted
    /// does not: its first request is on its way.
    pub(crate) fn may_close_idle(&self, now: Instant) -> bool {
        self.state == ConnState::Idle || (self.is_idle() && now.since(self.since) >= NEW_GRACE)
    }

    /// Whether what its client still sends is read away: it gets no further response.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, ConnState::Lingering | ConnState::ResetPending)
    }

    /// When this connection has waited long enough; `None` while an exchange decides.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let wait = match self.state {
            ConnState::ProxyHeader | ConnState::New | ConnState::RequestHeader => limits.head_ms,
            ConnState::Idle => limits.idle_ms,
            ConnState::Lingering | ConnState::ResetPending => limits.linger_ms,
            ConnState::Busy => return None,
        };
        Some(self.since + Duration::from_millis(wait))
    }
}

/// How long a connection without a byte counts as one whose request is on its way.
const NEW_GRACE: Duration = Duration::from_secs(1);
