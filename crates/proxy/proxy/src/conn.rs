//! One client connection: its transport, where it stands between requests, and the exchanges that
//! it serves, in the order of their requests. It owns the descriptor; exchanges borrow it through
//! the worker.

use std::net::SocketAddr;
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_engine::{Fd, Instant, Key, TimerId};
use millrace_http1::HeadScan;

use crate::clients::Client;
use crate::input::Input;

/// Where a client connection stands.
///
/// ```text
///  accept ──> Greeting ──> Fresh ──> Head ──> Busy ──> Lingering ──> closed
///       └────────────────────^         ^        │ └────────────────────^
///                                    Idle <─────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// A PROXY protocol header has to come first.
    Greeting,
    /// No byte has come yet.
    Fresh,
    /// A request was answered, and no byte of the next is there.
    Idle,
    /// A request head has begun and not ended.
    Head,
    /// At least one exchange is under way.
    Busy,
    /// The last answer was sent; what the client still sends is read away, so that it can read the
    /// answer before a reset reaches it (RFC 9112 section 9.6).
    Lingering,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) fd: Fd,
    pub(crate) input: Input,
    /// The client's address, as the PROXY header gave it if one was believed. `None`: a Unix
    /// socket.
    pub(crate) client: Option<SocketAddr>,
    /// What the client connected to, as a believed PROXY header gave it; `None`: the engine knows.
    pub(crate) reached: Option<SocketAddr>,
    /// The address that the connection came from.
    pub(crate) peer: Option<SocketAddr>,
    /// The client that it counts for in the limits; `None`: a Unix socket.
    pub(crate) counted_as: Option<Client>,
    pub(crate) standing: Standing,
    /// When `standing` began.
    pub(crate) since: Instant,
    pub(crate) timer: TimerId,
    pub(crate) scan: HeadScan,
    /// The exchange whose answer is next, and the last one that was begun: the ends of a list
    /// through [`Exchange::next`](crate::exchange::Exchange::next). Only the first is delivered.
    pub(crate) first: Option<Key>,
    pub(crate) last: Option<Key>,
    /// Exchanges in that list; more than one only where requests are pipelined.
    pub(crate) under_way: u16,
    /// The number of its listener.
    pub(crate) listener: u16,
    /// A receive is outstanding.
    pub(crate) receiving: bool,
    /// A send is outstanding.
    pub(crate) sending: bool,
    /// The client ended its stream: no further request will come.
    pub(crate) ended: bool,
    /// The connection broke while a pipe was filled from it: how its stream ends says nothing.
    pub(crate) broken: bool,
}

// An idle connection costs this and no buffer (DESIGN.md, decision 7).
const _: () = assert!(size_of::<Conn>() <= 256);

impl Conn {
    pub(crate) fn stand(&mut self, standing: Standing, now: Instant) {
        self.standing = standing;
        self.since = now;
    }

    /// Whether an exchange may have its answer sent now: it is the first, and no interim answer is
    /// on its way.
    pub(crate) fn may_go(&self, exchange: Key) -> bool {
        self.first == Some(exchange) && !self.sending
    }

    /// Whether it waits for a request, of which no byte is there.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.standing, Standing::Fresh | Standing::Idle)
    }

    /// When this connection has waited long enough; `None` while an exchange decides.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let wait = match self.standing {
            Standing::Greeting | Standing::Fresh | Standing::Head => limits.head_ms,
            Standing::Idle => limits.idle_ms,
            Standing::Lingering => limits.linger_ms,
            Standing::Busy => return None,
        };
        Some(self.since + Duration::from_millis(wait))
    }
}
