//! Ends the use of origin connections: the connection returns to the pool or is closed.

use millrace_engine::{Engine, Key};

use crate::core::Core;
use crate::origin::{
    OriginId, OriginUse, Phase, PickReason, close::close, dial, fastcgi_errors, h1, pinned,
    pipeline,
};

/// Ends the part of the exchange at its origin after the response was read. The connection returns
/// to the pool if it may serve other requests.
pub(crate) fn finish_transaction<E: Engine>(core: &mut Core<E>, key: Key) {
    let exchange = core.exchange(key);
    let Some(origin_use) = exchange.transaction.connection.take() else { return };
    let id = exchange
        .transaction
        .origin
        .take()
        .expect("an exchange with a connection has picked an origin");
    let (moved, may_be_kept) = (exchange.download.forwarded(), h1::is_persistent(exchange));
    if exchange.transaction.is_reused {
        core.origins.note_kept(id);
    }
    core.origins.record_body_length(id, moved);
    release(core, origin_use, id, may_be_kept);
}

/// Ends the use of a connection to the origin `id`. The connection becomes idle if `may_be_kept`,
/// the wire is clean, and the snapshot in force allows it; otherwise it is closed.
pub(crate) fn release<E: Engine>(
    core: &mut Core<E>,
    origin_use: OriginUse,
    id: OriginId,
    may_be_kept: bool,
) {
    let slot = origin_use.slot();
    let Core { engine, origins, shared, .. } = core;
    let mut is_clean = false;
    if let Some(connection) = origins.connections.get_mut(slot) {
        if connection.uses.has_followers() {
            return release_shared(core, slot, id, may_be_kept);
        }
        is_clean = connection.wire.is_clean() && !connection.uses.is_cut;
        if connection.wire.has_records() {
            fastcgi_errors::report(shared, &mut connection.wire);
        }
    }
    let state = origins.state(id);
    let may_be_kept = may_be_kept && is_clean && state.is_in_force && !core.drain.is_draining;
    let has_processes = state.processes.is_some();
    if may_be_kept && !(has_processes && origins.claim_process(id, engine.now())) {
        let now = engine.now();
        if let Some(client) = origins.make_idle(slot, now) {
            pinned::note_idle(origins, slot, client);
        }
        origins.has_idle_processes |= has_processes;
        let header_max = origins.header_receive_max(id);
        if let Some(connection) = origins.connections.get_mut(slot) {
            connection.wire.receive(engine, header_max);
        }
        let limits = core.snapshot.limits();
        let per_origin = limits.origin_idle_connections as usize;
        let all = limits.origin_idle_connections_all as usize;
        if let Some(surplus) = core.origins.surplus_idle(id, per_origin, all) {
            close(core, surplus);
        }
    } else {
        pipeline::check_unread(core, slot);
        close(core, slot);
    }
    core.origins.end_request(id);
}

/// Ends the first use of a connection with followers. The next one gets the connection if
/// `may_be_kept`; otherwise it is closed.
#[cold]
#[inline(never)]
fn release_shared<E: Engine>(core: &mut Core<E>, slot: Key, id: OriginId, may_be_kept: bool) {
    if !may_be_kept || !pipeline::advance(core, slot, id) {
        close(core, slot);
    }
    core.origins.end_request(id);
}

/// Makes the exchange leave its origin in any phase. Cancels a lookup, dial or wait, and closes the
/// connection.
pub(crate) fn abandon_transaction<E: Engine>(core: &mut Core<E>, key: Key) {
    let exchange = core.exchange(key);
    if let Some(file) = &mut exchange.file {
        (file.program, file.response) = (None, None);
    }
    let transaction = &mut exchange.transaction;
    if !transaction.is_open() {
        // Without a picked origin there is neither a connection nor a dial.
        assert!(transaction.connection.is_none() && transaction.dial.is_none());
        transaction.phase = Phase::Start;
        return;
    }
    let (phase, id) = (transaction.phase, transaction.origin);
    match phase {
        Phase::Resolving => core.names.forget(key),
        Phase::Dialing => dial::cancel(core, key),
        Phase::Pipelined => pipeline::leave(core, key),
        Phase::WaitListed => core.overload.wait_list.retain(|entry| entry.key != key),
        Phase::Queued => {
            core.origins.leave_queue(id.expect("a queued exchange has picked an origin"), key)
        }
        _ => {}
    }
    let transaction = &mut core.exchange(key).transaction;
    assert!(transaction.dial.is_none(), "only the phase `Dialing` has attempts");
    let connection = transaction.connection.take();
    transaction.phase = Phase::Start;
    let pick_reason = std::mem::take(&mut transaction.pick_reason);
    let has_reservation = std::mem::take(&mut transaction.has_reservation);
    transaction.origin = None;
    if let Some(origin_use) = connection {
        close(core, origin_use.slot());
    }
    if let Some(id) = id {
        if has_reservation {
            core.origins.release_connection(id);
        }
        // The probe ends without a result, so that another request may probe.
        if pick_reason == PickReason::Probe {
            core.origins.state_mut(id).health.end_probe();
        }
        core.origins.end_request(id);
    }
}
