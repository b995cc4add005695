//! Stage fetch: sends the request to an origin and receives the header of the response. The stage
//! picks the origin and the connection, sends the request header (the upload sends the body),
//! passes interim responses on, and retries on another connection if that is sound.

use std::sync::Arc;
use std::task::Poll;

use millrace_engine::{Engine, Key};
use millrace_http1::{Authority, Framing, HeadScan, Scheme, Version, destination};

use crate::cached::now_ms;
use crate::cached::store_outcome;
use crate::conn::{self, client};
use crate::core::{Core, ExchangeParts};
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, NextStep, Stage};
use crate::exchange::{Exchange, RequestPlan};
use crate::exchange::{end, headers, local_redirect, sendfile};
use crate::names;
use crate::origin::h1::{self, HeaderOutcome};
use crate::origin::queue::{self, ConnectionSource};
use crate::origin::{
    self, OriginAddress, OriginId, Phase, PickReason, ProbeContext, Transaction, dial, events,
    fastcgi, pick, pinned, pipeline, program, release, secure,
};
use crate::overload::RECEIVE_AHEAD_MAX;
use crate::overload::wait_list::{self, WantedResource};
use crate::transfer::sink::TransferSink;
use crate::transfer::{TransferProgress, upload};
use millrace_dns::NameError;

/// Handles an event of an exchange in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    let progress = match event {
        Event::Enter => return begin(core, key),
        Event::End(reason) => return NextStep::End(reason),
        Event::OriginReadable => return read_response(core, key),
        Event::OriginEnded | Event::OriginBroke => return handle_origin_end(core, key),
        Event::OriginSent => upload::pump(core, key, false),
        Event::OriginSpliced(count) => upload::handle_spliced(core, key, count),
        Event::OriginFailed => upload::handle_origin_failure(core, key),
        Event::ClientReadable => upload::pump(core, key, false),
        Event::ClientEnded => upload::handle_client_end(core, key),
        Event::ClientFailed => return NextStep::End(Reason::ClientClosed),
        Event::Woken if upload::awaits_disk(core, key) => upload::pump(core, key, false),
        event => return resume(core, key, event),
    };
    next_step(progress)
}

/// Handles the events that matter only in a certain phase of the transaction.
#[inline(never)]
fn resume<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    match (event, core.exchange(key).transaction.phase) {
        // A refresh begins with a wake-up, which `refresh::begin` has queued.
        (Event::CapacityFreed | Event::Woken | Event::BecameFirst, Phase::Start) => {
            begin(core, key)
        }
        (Event::CapacityFreed, Phase::Queued) => leave_queue(core, key),
        // The exchange has become the first of its origin connection.
        (Event::Woken, Phase::Requesting) => read_response(core, key),
        (Event::Woken, Phase::Displaced) => end::send_displaced(core, key),
        (Event::Woken, Phase::AtProgram) => read_program_response(core, key),
        (Event::TimedOut, Phase::AtProgram) => NextStep::End(Reason::OriginTimedOut),
        (Event::NameResolved(result), Phase::Resolving) => handle_lookup(core, key, result),
        (Event::DialProgress, Phase::Dialing) => handle_dial_progress(core, key),
        (Event::BecameFirst, Phase::Requesting) => {
            core.exchange(key).transaction.awaiting_since = core.engine.now();
            read_response(core, key)
        }
        // The completed send was an interim response, for which the next header had to wait.
        (Event::ClientSent, Phase::Requesting) => read_response(core, key),
        // Becoming first, or a wake-up by the cache, changes nothing in the other phases.
        _ => NextStep::Wait,
    }
}

/// Returns the step after progress of the upload, which may end long before the response arrives.
fn next_step(progress: TransferProgress) -> NextStep {
    match progress {
        TransferProgress::Waiting | TransferProgress::Ended | TransferProgress::NotStarted => {
            NextStep::Wait
        }
        TransferProgress::Failed(reason) => NextStep::End(reason),
    }
}

/// Picks an origin and sends the request over one of its connections, or waits for one.
#[inline(never)]
fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let exchange = core.exchange(key);
    let phase = exchange.transaction.phase;
    assert_eq!(phase, Phase::Start, "a fetch that has begun continues by events");
    if program::is_used(exchange) {
        return match program::send_request(core, key, false) {
            Ok(()) => NextStep::Wait,
            Err(reason) => NextStep::End(reason),
        };
    }
    if queue::must_await_turn(core, key) {
        return NextStep::Wait;
    }
    let Some((id, pick_reason)) = pick_origin(core, key) else {
        return NextStep::End(Reason::MalformedTarget);
    };
    core.origins.begin_request(id);
    let exchange = core.exchange(key);
    let is_configured = matches!(exchange.plan, RequestPlan::Route(_));
    let is_tunnel = exchange.plan == RequestPlan::Tunnel;
    let transaction = &mut exchange.transaction;
    (transaction.origin, transaction.pick_reason) = (Some(id), pick_reason);
    (transaction.configured_origin, transaction.address) = (is_configured.then_some(id), None);
    let source = queue::acquire_unless_queued(core, key, id);
    if is_tunnel {
        // Detects a client that leaves while the connection is being opened. Bytes for the tunnel
        // that the client sends before the response are received too.
        let ExchangeParts { engine, client, .. } = core.parts_with_client(key);
        client::receive_ahead(engine, client);
    }
    if let Some(source) = source {
        return proceed(core, key, source);
    }
    match queue::divert_or_enqueue(core, key) {
        Ok(Some(source)) => proceed(core, key, source),
        Ok(None) => NextStep::Wait,
        Err(reason) => NextStep::End(reason),
    }
}

/// Tries to leave the queue of the origin, in which this exchange is the first.
fn leave_queue<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let id =
        core.exchange(key).transaction.origin.expect("the exchange is in the queue of its origin");
    let Some(source) = queue::acquire(core, key, id) else { return NextStep::Wait };
    core.origins.leave_queue(id, key);
    core.exchange(key).transaction.phase = Phase::Start;
    proceed(core, key, source)
}

/// Sends the request to the chosen origin, or first opens a connection to it.
fn proceed<E: Engine>(core: &mut Core<E>, key: Key, source: ConnectionSource) -> NextStep {
    match source {
        ConnectionSource::Idle(origin_use) => {
            let connection = core.origins.connections.get(origin_use.slot());
            let address = connection.and_then(|connection| connection.address);
            core.exchange(key).transaction.use_connection(origin_use, address, true);
            core.counters.origin_connections_reused.add(1);
            send_request(core, key)
        }
        ConnectionSource::Shared(place) => {
            core.counters.origin_connections_reused.add(1);
            pipeline::send_request(core, key, place);
            NextStep::Wait
        }
        ConnectionSource::New => {
            let id = core.exchange(key).transaction.origin.expect("picked before");
            core.origins.reserve_connection(id);
            core.exchange(key).transaction.has_reservation = true;
            let opening = open_connection(core, key, id);
            opening.map_or_else(
                |reason| handle_connect_failure(core, key, reason),
                |()| NextStep::Wait,
            )
        }
    }
}

fn pick_origin<E: Engine>(core: &mut Core<E>, key: Key) -> Option<(OriginId, PickReason)> {
    let Core { exchanges, origins, shared, engine, counters, .. } = core;
    let exchange = exchanges.get(key)?;
    let snapshot = exchange.snapshot();
    if let RequestPlan::Route(index) = exchange.plan {
        let route = snapshot.route(exchange.service, index);
        let tried = exchange.transaction.failed_origin;
        let probing =
            || ProbeContext { now: engine.now(), is_repeatable: h1::may_repeat(exchange) };
        let picked = pick(origins, route, &shared.health, tried, probing);
        if picked.1 == PickReason::Probe {
            counters.origin_probes.add(1);
        }
        return Some(picked);
    }
    let Authority { host, port } = destination(&exchange.request).ok()?.authority?;
    let is_absolute = snapshot.target_filter(exchange.service).needs_absolute_names();
    let scheme = exchange.sender.scheme;
    let port = port.unwrap_or(scheme.port());
    let id = match scheme {
        Scheme::Http => {
            let rules = snapshot.rules[exchange.service as usize];
            origins.intern_requested(rules, host, port, is_absolute)
        }
        Scheme::Https => {
            let rules = snapshot.fetch_rules(exchange.service)?;
            origins.intern_secured(rules, host, port, is_absolute)?
        }
    };
    Some((id, PickReason::Normal))
}

/// Opens a connection to an origin, after a lookup if only its name is known.
fn open_connection<E: Engine>(core: &mut Core<E>, key: Key, id: OriginId) -> Result<(), Reason> {
    let (name, port) = match core.origins.address(id) {
        OriginAddress::Unix(path) => {
            let path = path.clone();
            return dial::start_unix(core, key, path);
        }
        OriginAddress::Address(address) => {
            let address = *address;
            return dial::start_race(core, key, Arc::new([address.ip()]), address.port());
        }
        OriginAddress::Name(name, port) => (name.clone(), *port),
    };
    match core.names.lookup(&mut core.engine, &name, key) {
        Poll::Ready(Ok(addresses)) => dial::start_race(core, key, addresses, port),
        Poll::Pending => {
            core.exchange(key).transaction.phase = Phase::Resolving;
            Ok(())
        }
        Poll::Ready(Err(error)) => Err(names::reason_of(error)),
    }
}

/// Handles the result of the name lookup.
fn handle_lookup<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    result: Result<(), NameError>,
) -> NextStep {
    let transaction = &mut core.exchange(key).transaction;
    let id = transaction.origin.expect("the origin is picked before its name is looked up");
    let addresses = transaction.addresses.take().unwrap_or_default();
    let opening = match result {
        Ok(()) => {
            let OriginAddress::Name(_, port) = *core.origins.address(id) else {
                unreachable!("only names are looked up");
            };
            dial::start_race(core, key, addresses, port)
        }
        Err(error) => Err(names::reason_of(error)),
    };
    opening.map_or_else(|reason| handle_connect_failure(core, key, reason), |()| NextStep::Wait)
}

/// Handles progress of the connection attempts.
fn handle_dial_progress<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    match dial::advance(core, key) {
        Ok(true) => use_new_connection(core, key),
        Ok(false) => NextStep::Wait,
        Err(reason) => handle_connect_failure(core, key, reason),
    }
}

/// Begins the tunnel over a connection that was just opened, or sends the request after the PROXY
/// header and the TLS handshake that it needs.
fn use_new_connection<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let exchange = core.exchange(key);
    if exchange.plan == RequestPlan::Tunnel {
        exchange.transaction.phase = Phase::Responding;
        return NextStep::Advance(Stage::Deliver);
    }
    if pinned::required_client(exchange).is_some() {
        pinned::write_header(core, key);
    }
    match secure::begin(core, key) {
        Ok(false) => send_request(core, key),
        Ok(true) => NextStep::Wait,
        Err(reason) => handle_connect_failure(core, key, reason),
    }
}

/// Continues the TLS handshake with the origin.
#[inline(never)]
fn continue_handshake<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    match secure::advance(core, key) {
        Ok(true) => send_request(core, key),
        Ok(false) => NextStep::Wait,
        Err(reason) => handle_connect_failure(core, key, reason),
    }
}

/// Sends the request over the connection that the exchange has now.
fn send_request<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let Core { engine, exchanges, origins, out, .. } = core;
    let now = engine.now();
    let exchange = exchanges.get_mut(key).expect("the exchange has a connection");
    exchange.caching.request_ms = now_ms(engine);
    let transaction = &mut exchange.transaction;
    transaction.phase = Phase::Requesting;
    transaction.awaiting_since = now;
    transaction.scan = HeadScan::default();
    let id = transaction.origin.expect("the origin is picked before a connection is opened");
    if fastcgi::is_used(exchange) {
        return next_step(fastcgi::send_request(core, key, id));
    }
    out.clear();
    let origin = (origins.address(id), origins.default_port(id));
    exchange.transaction.upgrade_sent =
        headers::write_request(&mut h1::header(out), exchange, origin);
    if exchange.snapshot().pipelines {
        pipeline::offer_places(core, key);
    }
    events::receive(core, key);
    let ExchangeParts { engine, exchange, client, origin, out, .. } = core.parts(key);
    if client.is_none() {
        // A refresh has no body, and nothing waits for the end of its upload.
        exchange.upload = Default::default();
        origin.expect("the request has its connection").wire.send(engine, &[out]);
        return NextStep::Wait;
    }
    exchange.upload.start(exchange.framing, exchange.framing == Framing::Chunked, now);
    next_step(upload::pump(core, key, true))
}

/// Parses response headers from the bytes that the origin has sent. Called when bytes have arrived,
/// when the client has taken an interim response, and when the exchange becomes the first of its
/// connection.
#[inline(never)]
fn read_response<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    loop {
        let ExchangeParts { engine, exchange, client, origin, .. } = core.parts(key);
        if exchange.transaction.phase == Phase::Securing {
            return continue_handshake(core, key);
        }
        let Some(origin) = origin else { unreachable!("a response arrives on a connection") };
        if client.is_some_and(|client| !client.may_send(key)) {
            return receive_ahead(core, key);
        }
        let Exchange { transaction, response, snapshot, .. } = &mut *exchange;
        let limits = &snapshot.as_ref().expect("set when the exchange begins").response_limits;
        let received = origin.wire.response_bytes();
        let length = match response.parse_lenient(received, &mut transaction.scan, limits) {
            Ok(Some(length)) => {
                origin.wire.consume_header(length);
                transaction.is_ambiguous |= transaction.scan.is_ambiguous();
                transaction.scan = HeadScan::default();
                length
            }
            Ok(None) if origin.wire.has_ended() => return handle_origin_end(core, key),
            Ok(None) => {
                events::receive(core, key);
                return NextStep::Wait;
            }
            Err(_) => return NextStep::End(Reason::MalformedResponse),
        };
        match h1::classify_header(exchange) {
            Ok(HeaderOutcome::Interim) => {
                let early_bytes = &mut exchange.transaction.early_bytes;
                *early_bytes = early_bytes.saturating_sub(length);
                pass_interim(core, key);
            }
            Ok(HeaderOutcome::Final(framing)) => {
                begin_response(engine, exchange, framing);
                let pipelines = exchange.snapshot().pipelines;
                if origin.wire.has_records() {
                    fastcgi::note_response(core, key);
                }
                if pipelines {
                    pipeline::check_response(core, key);
                }
                return handle_response(core, key);
            }
            Err(reason) => return NextStep::End(reason),
        }
    }
}

/// Notes that the header of the final response was received.
#[inline(always)]
fn begin_response<E: Engine>(engine: &E, exchange: &mut Exchange, framing: Framing) {
    let transaction = &mut exchange.transaction;
    transaction.framing = framing;
    transaction.phase = Phase::Responding;
    transaction.responded_at = Some(engine.now());
    let memory_bytes = exchange.response.bytes().len() + size_of_val(exchange.response.fields());
    exchange.charges[1] = Some(engine.budget().charge(memory_bytes));
    exchange.transaction.names_file = sendfile::names_file(exchange);
}

/// Continues an exchange that waits for a program.
#[inline(never)]
fn read_program_response<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    match program::take_response(core, key) {
        Ok(Some(framing)) => {
            let ExchangeParts { engine, exchange, .. } = core.parts(key);
            begin_response(engine, exchange, framing);
            handle_response(core, key)
        }
        Ok(None) => NextStep::Wait,
        Err(reason) => NextStep::End(reason),
    }
}

/// Handles the header of the final response.
fn handle_response<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    origin::outcome::record_response(core, key);
    let exchange = core.exchange(key);
    let transaction = &exchange.transaction;
    let names_other = transaction.is_local_redirect || transaction.names_file;
    if exchange.response.status() >= 502
        && let Some(step) = end::retry_on_status(core, key)
    {
        return step;
    }
    if !store_outcome::process_response(core, key) {
        return repeat_without_conditions(core, key);
    }
    match names_other {
        true => follow(core, key),
        false => NextStep::Advance(Stage::Deliver),
    }
}

/// Continues with the path or the file that the response names.
#[cold]
#[inline(never)]
fn follow<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    match core.exchange(key).transaction.is_local_redirect {
        true => local_redirect::follow(core, key),
        false => sendfile::follow(core, key),
    }
}

/// Receives a little of a response that has to wait for its turn in the pipeline. This also detects
/// that the origin has closed the connection, which then does not become idle after the response.
fn receive_ahead<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let ExchangeParts { origin, .. } = core.parts(key);
    if origin.is_some_and(|origin| origin.wire.recv_buffer.bytes().len() < RECEIVE_AHEAD_MAX) {
        events::receive(core, key);
    }
    NextStep::Wait
}

/// Sends the request once more, without the conditions that the proxy added. Used if the response
/// does not apply to the stored response, or if the stored response does not serve the request.
fn repeat_without_conditions<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    match core.exchange(key).transaction.framing {
        Framing::None | Framing::Length(0) => release::finish_transaction(core, key),
        // The body is of no use.
        _ => release::abandon_transaction(core, key),
    }
    let exchange = core.exchange(key);
    (exchange.caching.object, exchange.caching.remainder) = (None, None);
    exchange.caching.is_stale_fallback = false;
    exchange.upload = Default::default();
    exchange.transaction = Transaction::default();
    NextStep::Reenter
}

/// Passes an interim response to the client, unless the client speaks HTTP/1.0, which has none (RFC
/// 9110 section 15.2).
fn pass_interim<E: Engine>(core: &mut Core<E>, key: Key) {
    let ExchangeParts { engine, exchange, client, out, .. } = core.parts(key);
    exchange.transaction.awaiting_since = engine.now();
    let Some(client) = client else { return };
    if exchange.request.version() == Version::Http10 {
        return;
    }
    out.clear();
    headers::write_interim(&mut conn::h1::header(out), exchange);
    client.wire.send(engine, &[out]);
}

/// Handles the end of the origin's stream, in order or by an error, before the response header was
/// parsed. If the header is already received and only waits for its turn, the exchange continues to
/// wait.
#[inline(never)]
fn handle_origin_end<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    if core.exchange(key).transaction.phase == Phase::Securing {
        return handle_connect_failure(core, key, Reason::OriginTlsFailed);
    }
    let ExchangeParts { client, origin, .. } = core.parts(key);
    let waits = client.is_some_and(|client| !client.may_send(key));
    if waits && origin.as_ref().is_some_and(|it| !it.wire.response_bytes().is_empty()) {
        // The wire records whether the stream ended or broke. A body that is delimited by the end
        // of the stream is whole only if the stream ended in order.
        return NextStep::Wait;
    }
    if origin.is_some_and(|origin| origin.wire.has_malformed_records()) {
        // It may have done what the request asks for, so the request is not repeated as after the
        // end of an idle connection.
        return NextStep::End(Reason::MalformedResponse);
    }
    NextStep::End(Reason::OriginClosed)
}

/// Handles the failure to open a connection. If this worker has no capacity for one, the exchange
/// waits for capacity.
fn handle_connect_failure<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason) -> NextStep {
    let transaction = &core.exchange(key).transaction;
    let (phase, id) = (transaction.phase, transaction.origin);
    if reason == Reason::Overloaded {
        let want = if phase == Phase::Dialing {
            WantedResource::Connection
        } else {
            WantedResource::Lookup
        };
        release::abandon_transaction(core, key);
        return match wait_list::enqueue(core, key, want) {
            true => NextStep::Wait,
            false => NextStep::End(Reason::Overloaded),
        };
    }
    if let Some(counters) = id.and_then(|id| core.origins.counters(id)) {
        counters.connect_errors.add(1);
    }
    NextStep::End(reason)
}
