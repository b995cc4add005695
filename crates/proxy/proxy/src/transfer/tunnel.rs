//! Tunnels: CONNECT, and protocols that Upgrade switched to. A tunnel has two transfers without
//! framing. The end of each source's stream is passed on, so a half-closed tunnel continues in the
//! other direction. The tunnel ends when both directions have ended, or when either side breaks.
//!
//! The ClientHello of a CONNECT tunnel is peeked if a rule or the log depends on the name that it
//! asks for (SNI). The client's first bytes stay in the receive buffer until they are a whole
//! ClientHello, or can never become one. So no byte of a tunnel that is then closed has reached the
//! target. The other direction is never held, because in some protocols the server speaks first.
//! Where names are checked, the name in a second ClientHello is, too: a server that requests it
//! serves that one.

use millrace_config::LogFormat;
use millrace_engine::{Engine, Key};
use millrace_http1::{Framing, Host, destination};
use millrace_tls::{
    AfterHello, ClientHello, HELLO_BYTES_MAX, Sniffed, after_hello, sniff, sniff_second,
};

use crate::core::{Core, ExchangeParts};
use crate::exchange::hello_peek::HelloPeek;
use crate::exchange::{Exchange, Reason, RequestPlan};
use crate::transfer::{TransferProgress, download, upload};

/// Starts both directions with the bytes that were already received on either side. The header in
/// `core.out` is sent to the client first.
pub(crate) fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let now = core.engine.now();
    core.counters.tunnels.add(1);
    let exchange = core.exchange(key);
    exchange.is_tunnel = true;
    exchange.is_persistent = false;
    exchange.upload.start(Framing::UntilClose, false, now);
    exchange.download.start(Framing::UntilClose, false, now);
    exchange.peek = peek_of(exchange);
    let is_peeking = exchange.is_peeking();
    let begun = download::pump(core, key, true);
    assert_eq!(
        begun,
        TransferProgress::Waiting,
        "a tunnel begins with a header, and has no framing to break"
    );
    if is_peeking { peek(core, key) } else { upload::pump(core, key, false) }
}

/// Returns the peek with which a tunnel begins; `None` if nothing depends on its ClientHello.
fn peek_of(exchange: &Exchange) -> Option<Box<HelloPeek>> {
    if exchange.plan != RequestPlan::Tunnel {
        return None;
    }
    let snapshot = exchange.snapshot();
    let log = snapshot.config.access_log.as_ref();
    let is_logged = log.is_some_and(|log| log.format == LogFormat::Json);
    let is_checked = snapshot.target_filter(exchange.service).checks_server_names();
    (is_logged || is_checked).then(Box::default)
}

/// Examines the bytes that the client has sent so far. Sends them once the tunnel may continue.
#[inline(never)]
pub(crate) fn peek<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let ExchangeParts { engine, exchange, client, .. } = core.parts_with_client(key);
    let filter = exchange.snapshot().target_filter(exchange.service);
    let checks = filter.checks_server_names();
    let Some(pending) = &mut exchange.peek else { return TransferProgress::NotStarted };
    let held = client.wire.recv_buffer.bytes();
    let (sniffed, awaits_second) = match pending.awaits_second() {
        true => (sniff_second(held), false),
        false => sniff_first(held, checks),
    };
    let has_ended = client.wire.has_ended();
    if sniffed == Sniffed::Incomplete && !has_ended && held.len() < HELLO_BYTES_MAX {
        if !held.is_empty() {
            pending.hold(engine.now());
        }
        let max = HELLO_BYTES_MAX - held.len();
        client.wire.receive(engine, max);
        exchange.upload.await_source(engine.now());
        return TransferProgress::Waiting;
    }
    let may_continue = held.is_empty() || pending.awaits_second() && has_ended;
    let found = match sniffed {
        Sniffed::Hello(hello) if awaits_second => PeekResult::FirstHello(hello),
        Sniffed::Hello(hello) => PeekResult::LastHello(hello),
        Sniffed::Other => PeekResult::Other,
        Sniffed::Incomplete if may_continue => PeekResult::Other,
        Sniffed::Incomplete | Sniffed::Unreadable => PeekResult::Unreadable(Reason::SniUnreadable),
    };
    decide(core, key, found)
}

/// Examines the first bytes of a tunnel. Returns also whether a second ClientHello may follow that
/// has to be examined too: a client may send another name there (RFC 8446 section 4.1.2 forbids it,
/// but few servers compare them).
fn sniff_first(held: &[u8], checks: bool) -> (Sniffed, bool) {
    let sniffed = sniff(held);
    if !checks || !matches!(sniffed, Sniffed::Hello(_)) {
        return (sniffed, false);
    }
    match after_hello(held) {
        AfterHello::Nothing => (sniffed, true),
        AfterHello::Incomplete => (Sniffed::Incomplete, false),
        AfterHello::Other => (sniffed, false),
        // A second ClientHello could follow early data of any length.
        AfterHello::Unrequested | AfterHello::EarlyData => (Sniffed::Unreadable, false),
    }
}

/// Ends the peek because the ClientHello was not whole in time.
#[inline(never)]
pub(crate) fn time_out_peek<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    decide(core, key, PeekResult::Unreadable(Reason::SniTimedOut))
}

/// The result of a peek.
enum PeekResult {
    /// The first ClientHello. The next bytes are examined, too.
    FirstHello(ClientHello),
    /// The last ClientHello that is examined.
    LastHello(ClientHello),
    /// A ClientHello that cannot be read. If names are checked, the tunnel closes for this reason.
    Unreadable(Reason),
    /// Anything else.
    Other,
}

/// Continues the tunnel, or fails with the reason to close it.
fn decide<E: Engine>(core: &mut Core<E>, key: Key, found: PeekResult) -> TransferProgress {
    let awaits_second = matches!(found, PeekResult::FirstHello(_));
    let exchange = core.exchange(key);
    let filter = exchange.snapshot().target_filter(exchange.service);
    let requested = destination(&exchange.request).ok().and_then(|it| it.authority);
    let host = requested.map_or(Host::Name(b""), |authority| authority.host);
    let first = exchange.peek.as_ref().filter(|peek| peek.awaits_second());
    let first_name = first.and_then(|peek| peek.server_name()).map(str::to_owned);
    let (server_name, checked) = match found {
        PeekResult::Unreadable(reason) if filter.checks_server_names() => (first_name, Err(reason)),
        PeekResult::FirstHello(hello) | PeekResult::LastHello(hello) => {
            let checked = filter.check_server_name(host, hello.server_name.as_deref());
            (hello.server_name, checked)
        }
        // The name in the first ClientHello has been checked.
        _ if first.is_some() => (first_name, Ok(())),
        PeekResult::Unreadable(_) | PeekResult::Other => {
            (None, filter.check_server_name(host, None))
        }
    };
    if let Err(reason) = checked {
        exchange.peek = Some(Box::new(HelloPeek::Refused { server_name }));
        return TransferProgress::Failed(reason);
    }
    exchange.peek = Some(Box::new(match awaits_second {
        true => HelloPeek::AwaitingSecond { server_name, since: None },
        false => HelloPeek::Passed { server_name },
    }));
    if awaits_second {
        // While a receive is outstanding, nothing is spliced past the peek.
        let ExchangeParts { engine, client, .. } = core.parts_with_client(key);
        client.wire.receive(engine, HELLO_BYTES_MAX);
    }
    upload::pump(core, key, false)
}
