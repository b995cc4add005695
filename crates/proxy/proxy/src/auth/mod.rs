//! Who may use a forward proxy: proxy authentication by Basic and Bearer (RFC 9110 section 11.7,
//! RFC 7617, RFC 6750) against a file of users.
//!
//! ```text
//! Unasked ──known──────────────────────────> Granted
//!    │ └──a password to compare──> Waiting ──verdict──^
//!    └──> 407, 503                    └──> 407, 503
//! ```
//!
//! A worker never runs a slow hash. It looks into its own memory of credentials (`gate.rs`), and
//! what is not there becomes a question to the verifier: a thread of the program, or an actor of
//! the simulator. The exchange waits until the verdict comes by mailbox, or until `auth_ms` is
//! over. Credentials are looked at here and nowhere else: they are neither forwarded, nor logged,
//! nor kept, except as digests under a key that only this worker has.

mod cache;
mod challenge;
mod credentials;
mod gate;
mod memory;
mod queue;

use std::sync::Arc;

use millrace_engine::{Engine, Key};
use millrace_http1::{Framing, Method, Name, connection_options};

use crate::conn::Conn;
use crate::exchange::Exchange;
use crate::flow::{self, Step};
use crate::reason::Reason;
use crate::stage::deliver;
use crate::worker::Worker;

pub(crate) use challenge::write_challenges;
pub(crate) use gate::Gate;
pub use gate::{Desk, VERDICTS_MAX};
pub use memory::Memory;
pub use queue::{FairQueue, Outcome, Question, Refused, Verdict, Verifier};

/// What is known of the one who sent a request.
#[derive(Clone, Debug, Default)]
pub(crate) enum Access {
    /// Nothing was asked yet.
    #[default]
    Unasked,
    /// The verifier compares a password.
    Waiting,
    /// It is this user.
    Granted(Arc<[u8]>),
}

/// Lets a request on whose sender is known to the service's file of users; else says what becomes
/// of it. A request that came back from the verifier is let on.
///
/// # Errors
/// The step to take instead.
pub(crate) fn admit<E: Engine>(worker: &mut Worker<E>, key: Key) -> Result<(), Step> {
    let Worker { exchanges, conns, engine, gate, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is under way");
    match exchange.access {
        Access::Unasked => {}
        // It has become the first of its connection meanwhile: `flow::resume`.
        Access::Waiting => return Err(Step::Wait),
        Access::Granted(_) => return Ok(()),
    }
    let snapshot = exchange.snapshot().clone();
    let auth = snapshot.service(exchange.service).auth.as_ref();
    let users = auth.and_then(|auth| auth.users.as_ref()).ok_or(Reason::AuthRequired);
    let conn = conns.get(exchange.conn()).expect("an exchange has its connection");
    let judged = users.and_then(|users| {
        let value = only_value(exchange).ok_or(Reason::AuthRequired)?;
        let client = conn.client.map(|address| address.ip());
        gate.judge(engine, snapshot.limits(), users, value, client, key)
    });
    match judged {
        Ok(Some(user)) => {
            exchange.access = Access::Granted(user);
            Ok(())
        }
        Ok(None) => {
            exchange.access = Access::Waiting;
            if exchange.request.method() == Method::Connect {
                // What follows it meanwhile is to be seen before it is refused.
                let conn = exchange.conn();
                worker.watch_client(conn);
            }
            Err(Step::Wait)
        }
        Err(reason) => {
            refused(exchange, nothing_follows(engine, conn), reason);
            Err(Step::Refuse(reason))
        }
    }
}

/// The one Proxy-Authorization field; two of them would let two readers see two users.
fn only_value(exchange: &Exchange) -> Option<&[u8]> {
    let mut values = exchange.request.values(Name::ProxyAuthorization);
    let value = values.next();
    value.filter(|_| values.next().is_none())
}

/// Whether no byte was received behind the request, nor announced by the engine. Bytes that arrive
/// later are the next request: a client may send it as soon as it has read the refusal, before
/// the engine reports that the refusal was sent.
fn nothing_follows<E: Engine>(engine: &E, conn: &Conn) -> bool {
    conn.input.is_empty() && !engine.is_announced(&conn.fd)
}

/// RFC 9110 section 11.7.1: a client is expected to repeat the request with credentials, so it may
/// do so on the same connection. Any other refusal of a CONNECT ends the connection, because bytes
/// behind the request were meant for the tunnel. So does this one if bytes were received behind it.
fn refused(exchange: &mut Exchange, nothing_follows: bool, reason: Reason) {
    let is_connect = exchange.request.method() == Method::Connect;
    if is_connect && reason.status() == 407 && nothing_follows {
        let options = connection_options(&exchange.request);
        exchange.persistent =
            exchange.framing == Framing::None && options.is_persistent(exchange.request.version());
    }
}

/// Takes what the verifier has said, and lets those on, or refuses them, who waited for it.
pub(crate) fn read_verdicts<E: Engine>(worker: &mut Worker<E>) {
    if !worker.gate.has_asked() {
        return;
    }
    let now = worker.engine.now();
    let snapshot = worker.snapshot.clone();
    for (waiting, result) in worker.gate.read_verdicts(now, snapshot.limits()) {
        for key in waiting {
            go_on(worker, key, result.clone());
        }
    }
}

/// Answers those for whom the verifier took too long.
pub(crate) fn give_up<E: Engine>(worker: &mut Worker<E>) {
    if !worker.gate.has_asked() {
        return;
    }
    let now = worker.engine.now();
    let snapshot = worker.snapshot.clone();
    for key in worker.gate.give_up(now, snapshot.limits()) {
        go_on(worker, key, Err(Reason::AuthBusy));
    }
}

fn go_on<E: Engine>(worker: &mut Worker<E>, key: Key, result: Result<Arc<[u8]>, Reason>) {
    let Worker { exchanges, conns, engine, .. } = worker;
    // Its client may have left.
    let Some(exchange) = exchanges.get_mut(key) else { return };
    if !matches!(exchange.access, Access::Waiting) {
        return;
    }
    match result {
        Ok(user) => exchange.access = Access::Granted(user),
        Err(reason) => {
            exchange.access = Access::Unasked;
            let conn = conns.get(exchange.conn()).expect("an exchange has its connection");
            refused(exchange, nothing_follows(engine, conn), reason);
            deliver::refuse(worker, key, reason);
        }
    }
    flow::run(worker, key);
}
