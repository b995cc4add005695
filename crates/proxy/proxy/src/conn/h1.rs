//! HTTP/1 on a client connection: the order of pipelined exchanges, persistence of the connection,
//! and bodies that are delimited by the end of the connection.

use millrace_engine::Key;
use millrace_http1::{
    FieldName, Framing, HeadScan, Http1Header, Method, Version, connection_options,
};

use crate::exchange::{Abort, AfterExchange, Exchange};

/// The exchanges of a connection in the order of their requests (RFC 9112 section 9.3.2), linked by
/// [`Exchange::next_in_pipeline`]. Only the first is delivered.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    /// The parser's position in the next request header.
    pub(crate) scan: HeadScan,
    first: Option<Key>,
    last: Option<Key>,
    /// The number of exchanges in the list. More than one only if requests are pipelined.
    len: u16,
}

impl Pipeline {
    /// Returns the exchange whose response is sent next.
    pub(crate) fn first(&self) -> Option<Key> {
        self.first
    }

    /// Returns the exchange that began last.
    pub(crate) fn last(&self) -> Option<Key> {
        self.last
    }

    /// Returns the number of exchanges.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.len)
    }

    /// Returns whether the response of `exchange` is sent next.
    pub(crate) fn is_first(&self, exchange: Key) -> bool {
        self.first == Some(exchange)
    }

    /// Appends an exchange that began. Returns its predecessor, which has to be linked to it.
    pub(crate) fn push(&mut self, exchange: Key) -> Option<Key> {
        self.scan = HeadScan::default();
        self.len += 1;
        let before = self.last.replace(exchange);
        if before.is_none() {
            self.first = Some(exchange);
        }
        before
    }

    /// Removes the first exchange. Its successor is `next`.
    ///
    /// # Panics
    /// If `exchange` is not the first.
    pub(crate) fn pop(&mut self, exchange: Key, next: Option<Key>) {
        assert!(self.is_first(exchange), "exchanges end in the order of their requests");
        self.first = next;
        self.last = self.last.filter(|_| next.is_some());
        self.len -= 1;
    }
}

/// Returns whether the next request may be read before the response to this one is sent. If the
/// next one allows pipelining too, both are served at the same time (RFC 9112 section 9.3.2). After
/// a request with a body or Upgrade, the next bytes may not even be a request.
#[inline]
pub(crate) fn allows_pipelining(exchange: &Exchange) -> bool {
    exchange.has_request
        && exchange.is_persistent
        && exchange.framing == Framing::None
        && exchange.request.method().is_safe()
        && exchange.request.find(FieldName::Upgrade).is_none()
}

/// Returns whether the client lets its connection stay open after this request (RFC 9112 section
/// 9.3). Bytes after CONNECT are meant for the tunnel, even if the tunnel is refused.
pub(crate) fn wants_persistence(exchange: &Exchange) -> bool {
    let request = &exchange.request;
    connection_options(request).is_persistent(request.version())
        && request.method() != Method::Connect
}

/// Returns how a body with the framing `framing` is sent: whether in chunks, and whether the end of
/// the connection delimits it (RFC 9112 section 6.3).
pub(crate) fn outgoing_framing(exchange: &Exchange, framing: Framing) -> (bool, bool) {
    let is_unbounded = matches!(framing, Framing::Chunked | Framing::UntilClose);
    let chunked = is_unbounded && exchange.request.version() == Version::Http11;
    (chunked, is_unbounded && !chunked)
}

/// Decides how a connection continues after its first exchange. `has_more` means that bytes after
/// the request are unread, or that the client will certainly send some.
///
/// After a refusal more bytes may be on their way, such as the first bytes of a tunnel or the rest
/// of a malformed request. They must not cause a reset that overtakes the refusal.
pub(crate) fn after_exchange(exchange: &Exchange, has_more: bool) -> AfterExchange {
    if let Some(abort) = exchange.abort {
        return after_abort(abort);
    }
    if exchange.is_persistent {
        return AfterExchange::Continue;
    }
    let unread = match exchange.is_tunnel {
        // The origin stopped reading before the client's bytes were all sent.
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

/// Returns the writer for the header of a response.
pub(crate) fn header(out: &mut Vec<u8>) -> Http1Header<'_> {
    Http1Header::new(out)
}
