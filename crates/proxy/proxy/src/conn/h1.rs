//! HTTP/1 on a client connection: the order of pipelined exchanges, which connection goes on after
//! an exchange, and bodies that the end of the connection ends.

use millrace_engine::Key;
use millrace_http1::{Framing, HeadScan, Http1Header, Method, Name, Version, connection_options};

use crate::exchange::{Abort, AfterExchange, Exchange};

/// The exchanges of a connection in the order of their requests (RFC 9112 section 9.3.2): a list
/// through [`Exchange::next`]. Only the first is delivered.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    /// How far the next request header was looked at.
    pub(crate) scan: HeadScan,
    first: Option<Key>,
    last: Option<Key>,
    /// Exchanges in the list; more than one only where requests are pipelined.
    len: u16,
}

impl Pipeline {
    /// The exchange whose response is next.
    pub(crate) fn first(&self) -> Option<Key> {
        self.first
    }

    /// The exchange that began last.
    pub(crate) fn last(&self) -> Option<Key> {
        self.last
    }

    /// The number of exchanges.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.len)
    }

    /// Whether `exchange` is the one whose response is next.
    pub(crate) fn is_first(&self, exchange: Key) -> bool {
        self.first == Some(exchange)
    }

    /// Appends an exchange that began. Returns the one before it, whose successor it is.
    pub(crate) fn push(&mut self, exchange: Key) -> Option<Key> {
        self.scan = HeadScan::default();
        self.len += 1;
        let before = self.last.replace(exchange);
        if before.is_none() {
            self.first = Some(exchange);
        }
        before
    }

    /// Removes the first exchange, whose successor is `next`.
    ///
    /// # Panics
    /// When `exchange` is not the first.
    pub(crate) fn pop(&mut self, exchange: Key, next: Option<Key>) {
        assert!(self.is_first(exchange), "exchanges end in the order of their requests");
        self.first = next;
        self.last = self.last.filter(|_| next.is_some());
        self.len -= 1;
    }
}

/// Whether requests that follow may be read, and those that are safe be served beside this one
/// (RFC 9112 section 9.3.2), before it is answered. After others it is not even certain that what
/// follows is a request.
pub(crate) fn allows_pipelining(exchange: &Exchange) -> bool {
    exchange.has_request
        && exchange.is_persistent
        && exchange.framing == Framing::None
        && exchange.request.method().is_safe()
        && exchange.request.find(Name::Upgrade).is_none()
}

/// Whether the client lets its connection go on after this request (RFC 9112 section 9.3). After
/// CONNECT what follows was meant for a tunnel, whatever becomes of it.
pub(crate) fn wants_persistence(exchange: &Exchange) -> bool {
    let request = &exchange.request;
    connection_options(request).is_persistent(request.version())
        && request.method() != Method::Connect
}

/// How a body leaves that arrives, or is stored, as `framing` says: whether in chunks, and whether
/// the end of the connection ends it (RFC 9112 section 6.3).
pub(crate) fn outgoing_framing(exchange: &Exchange, framing: Framing) -> (bool, bool) {
    let is_unbounded = matches!(framing, Framing::Chunked | Framing::UntilClose);
    let chunked = is_unbounded && exchange.request.version() == Version::Http11;
    (chunked, is_unbounded && !chunked)
}

/// What becomes of a connection whose first exchange has ended. `has_more`: bytes behind the
/// request are unread. What follows a request that was refused may still be on its way, a tunnel's
/// first bytes or the rest of what was malformed: it must not turn the refusal into a reset.
pub(crate) fn after_exchange(exchange: &Exchange, has_more: bool) -> AfterExchange {
    if let Some(abort) = exchange.abort {
        return after_abort(abort);
    }
    if exchange.is_persistent {
        return AfterExchange::Continue;
    }
    let unread = match exchange.is_tunnel {
        // Its origin took no more.
        true => !exchange.upload.has_received_all(),
        false => exchange.reason.is_some() || !exchange.has_received_request(),
    };
    if unread || has_more { AfterExchange::Linger } else { AfterExchange::Close }
}

#[cold]
fn after_abort(abort: Abort) -> AfterExchange {
    match abort {
        Abort::Close => AfterExchange::Linger,
        Abort::ResetWhenDelivered => AfterExchange::ResetWhenDelivered,
        Abort::Reset => AfterExchange::Reset,
    }
}

/// The writer of a response's header.
pub(crate) fn header(out: &mut Vec<u8>) -> Http1Header<'_> {
    Http1Header::new(out)
}
