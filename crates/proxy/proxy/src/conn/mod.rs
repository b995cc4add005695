//! Client connections: the transport, the state between requests, and the exchanges in progress. A
//! connection owns its wire; exchanges borrow it through the core.

pub(crate) mod client;
pub(crate) mod h1;
pub(crate) mod listeners;
mod record_layer;
pub(crate) mod recv_buffer;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use millrace_engine::{Engine, Instant, Key, TimerId};

use crate::conn::{h1::Pipeline, wire::Wire};
use crate::overload::per_client::ClientPrefix;
use millrace_config::limits::Limits;

/// The state of a client connection.
///
/// ```text
/// accept ─> ProxyHeader ─> Handshake ─> New ─> RequestHeader ─> Busy ─> ResetPending ─> closed
///                                                    ^            │                       ^
///                                                   Idle <────────┴──> Ending ─> Lingering
/// ```
///
/// Connections without a PROXY header or without TLS skip `ProxyHeader` or `Handshake`. A header
/// that arrives in one receive skips `RequestHeader`. Only a secured connection whose end the
/// kernel does not take at once passes `Ending`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnState {
    /// The PROXY protocol header has to come first.
    ProxyHeader,
    /// The TLS handshake is in progress.
    Handshake,
    /// No byte of the first request has arrived.
    New,
    /// The last request was served, and no byte of the next has arrived.
    Idle,
    /// A request header has begun and is not complete.
    RequestHeader,
    /// At least one exchange is in progress.
    Busy,
    /// The last response was sent, and the kernel has not taken the announced end of the secured
    /// stream. Without it, a body that ends with the connection would look cut. Received bytes are
    /// discarded.
    Ending,
    /// The last response was sent. Received bytes are discarded, so that the client can read the
    /// response before a reset reaches it (RFC 9112 section 9.6).
    Lingering,
    /// The response is cut, and only a reset can show that. The reset waits until the client has
    /// everything that was sent; received bytes are discarded.
    ResetPending,
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) wire: Wire,
    /// The client's address, from the PROXY header if a trusted peer sent one. `None` for a Unix
    /// socket.
    pub(crate) client_address: Option<SocketAddr>,
    /// The destination address in the PROXY header of a trusted peer, or the local address once it
    /// was needed. Boxed, since most connections never need it.
    pub(crate) destination: Option<Box<SocketAddr>>,
    /// The address of the peer. `None` for a Unix socket.
    pub(crate) peer: Option<SocketAddr>,
    /// The client for which the limits count this connection. `None` for a Unix socket.
    pub(crate) counted_as: Option<ClientPrefix>,
    pub(crate) state: ConnState,
    /// Whether a client with a pending reset has sent nothing since its timer was set.
    pub(crate) is_quiet: bool,
    /// The bytes that a client with a pending end or reset had not acknowledged at `since`.
    pub(crate) undelivered: u32,
    /// When `state` began. While an end or a reset is pending, this time moves on whenever a check
    /// finds that the client acknowledges bytes at the minimum rate.
    pub(crate) since: Instant,
    pub(crate) timer: TimerId,
    pub(crate) pipeline: Pipeline,
    /// The number of the listener that accepted the connection.
    pub(crate) listener: u16,
}

// An idle connection takes this much memory, and no buffer.
const _: () = assert!(size_of::<Conn>() <= 256);

impl Conn {
    /// Returns the address to which the client connected. `None` for a Unix socket.
    pub(crate) fn destination<E: Engine>(&mut self, engine: &E) -> Option<SocketAddr> {
        if self.destination.is_none() {
            self.destination = self.wire.local_address(engine).map(Box::new);
        }
        self.destination.as_deref().copied()
    }

    /// Enters the state `state`.
    pub(crate) fn set_state(&mut self, state: ConnState, now: Instant) {
        self.state = state;
        self.since = now;
    }

    /// Returns whether a part of a request header has arrived: bytes of it, or a part of the TLS
    /// record that may have them.
    pub(crate) fn has_part_of_request(&self) -> bool {
        let waits = self.is_idle() || self.state == ConnState::RequestHeader;
        waits && (!self.wire.recv_buffer.is_empty() || self.wire.part_since().is_some())
    }

    /// Returns whether a response of this exchange may be sent now: the exchange is the first, and
    /// no interim response is being sent.
    pub(crate) fn may_send(&self, exchange: Key) -> bool {
        self.pipeline.is_first(exchange) && !self.wire.is_sending()
    }

    /// Returns whether the connection waits for the first byte of a request.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, ConnState::New | ConnState::Idle)
    }

    /// Returns whether the connection is idle and no request is expected soon. A connection that
    /// was only just accepted does not count: its first request is on its way.
    pub(crate) fn may_close_idle(&self, now: Instant) -> bool {
        self.state == ConnState::Idle || (self.is_idle() && now.since(self.since) >= NEW_GRACE)
    }

    /// Returns whether the client gets no further response and its bytes are discarded.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, ConnState::Ending | ConnState::Lingering | ConnState::ResetPending)
    }

    /// Returns whether the connection ends only after the client has taken bytes. A client that has
    /// ended its stream may still read them.
    pub(crate) fn has_pending_end(&self) -> bool {
        matches!(self.state, ConnState::Ending | ConnState::ResetPending)
    }

    /// Returns the deadline of the present state. `None` while an exchange is in progress. On an
    /// idle connection a part of a TLS record has the time of a request header, but extends no
    /// deadline: it may be another message of TLS, and any number of those may follow.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let wait = match self.state {
            ConnState::ProxyHeader | ConnState::New | ConnState::RequestHeader => limits.head_ms,
            ConnState::Handshake => limits.handshake_ms,
            ConnState::Idle => limits.idle_ms,
            ConnState::Ending => limits.send_ms,
            ConnState::Lingering | ConnState::ResetPending => limits.linger_ms,
            ConnState::Busy => return None,
        };
        let deadline = self.since + Duration::from_millis(wait);
        Some(match (self.state, self.wire.part_since()) {
            (ConnState::Idle, Some(part_since)) => {
                let begun = part_since.max(self.since);
                deadline.min(begun + Duration::from_millis(limits.head_ms))
            }
            _ => deadline,
        })
    }
}

/// How long the first request of a new connection counts as being on its way.
const NEW_GRACE: Duration = Duration::from_secs(1);
