//! Applies a new configuration, between two turns. Connections stay open: an exchange finishes
//! under the snapshot with which it began, and the next exchange of its connection begins under the
//! new one. See docs/design/lifecycle.md.

use std::rc::Rc;
use std::sync::Arc;

use millrace_engine::{Engine, Error, Key, Token};

use crate::cached::refresh::REFRESHES_MAX;
use crate::conn::{Conn, client};
use crate::core::Core;
use crate::origin::{close::close, program_events};
use crate::snapshot::Snapshot;
use millrace_config::Config;

/// Switches to `config`, unless it is older than the configuration in force. `sockets` are the
/// sockets of its new listeners, each with the listener's number.
pub(crate) fn apply_config<E: Engine>(
    core: &mut Core<E>,
    config: Arc<Config>,
    sockets: Vec<(u16, E::DetachedFd)>,
) {
    if core.drain.is_draining || config.number <= core.snapshot.config.number {
        // A worker that replaces another begins with the latest configuration. Then it reads the
        // unread messages of its predecessor, which may contain the same configuration or an older
        // one.
        for (_, socket) in sockets {
            if let Ok(fd) = core.engine.adopt(socket) {
                core.engine.close(fd);
            }
        }
        return;
    }
    let now = core.engine.now();
    let present = Snapshot::new(config, now, &mut core.origins, &core.shared, &core.secure.clock);
    let present = Rc::new(present);
    let before = std::mem::replace(&mut core.snapshot, present);
    core.snapshots.retire(&before);
    apply_listeners(core, &before, sockets);
    drop(before);
    // The folders of the new configuration were opened again.
    core.files.clear();
    apply_limits(core);
    update_for_snapshots(core);
    close_idle_of_removed(core);
}

fn apply_listeners<E: Engine>(
    core: &mut Core<E>,
    before: &Rc<Snapshot>,
    sockets: Vec<(u16, E::DetachedFd)>,
) {
    let present = core.snapshot.clone();
    for old in &before.config.listeners {
        let Some(new) = present.listener(old.number) else {
            let is_of = |conn: &&Conn| conn.listener == old.number;
            let connections = core.conns.iter().map(|(_, conn)| conn).filter(is_of).count();
            core.snapshots.remove_listener(old.number, before, connections);
            core.listeners.retire(&mut core.engine, old.number);
            continue;
        };
        let settings = [before.client_congestion(old), present.client_congestion(new)];
        if let [Some(_), None] = settings.map(|setting| setting.for_listener()) {
            // The listener returns to the system's algorithm: `NEARBY`, unless `system_congestion`
            // has another one.
            let name = core.shared.system_congestion.as_deref();
            for fd in core.listeners.fds(old.number) {
                core.engine.set_congestion(fd, name.unwrap_or(crate::congestion::NEARBY));
            }
        }
        apply_congestion(core, new.number);
    }
    let was_paused = core.listeners.is_paused();
    for (number, socket) in sockets {
        core.snapshots.restore_listener(number);
        if let Err(error) = adopt_listener(core, number, socket) {
            let (index, notice) = (core.index, core.shared.notify_operator);
            notice(&format!("worker {index} cannot take listener {number} over: {error}"));
        }
    }
    if !was_paused {
        core.listeners.resume(&mut core.engine);
    }
}

/// Adopts the socket of a listener of the snapshot in force. The listener is armed later.
pub(crate) fn adopt_listener<E: Engine>(
    core: &mut Core<E>,
    number: u16,
    socket: E::DetachedFd,
) -> Result<(), Error> {
    let fd = core.engine.adopt(socket)?;
    core.listeners.add(number, fd);
    apply_congestion(core, number);
    Ok(())
}

fn apply_congestion<E: Engine>(core: &mut Core<E>, number: u16) {
    let listener =
        core.snapshot.listener(number).expect("the listener is in the snapshot in force");
    let setting = core.snapshot.client_congestion(listener);
    if let Some(name) = setting.for_listener() {
        for fd in core.listeners.fds(number) {
            core.engine.set_congestion(fd, name);
        }
    }
}

/// Recomputes everything that was derived from the limits. Tables only grow.
pub(crate) fn apply_limits<E: Engine>(core: &mut Core<E>) {
    let limits = &core.snapshot.config.limits;
    // A listener takes two descriptors: the worker's, and the one that the supervisor keeps.
    let more = 2 * core.listeners.len() as i64 - 2 * core.overload.listeners_at_start as i64;
    let descriptors = (core.overload.descriptors_at_start as i64 - more.max(0)).max(2) as usize;
    let for_clients = (descriptors * 7 / 8).max(1);
    let connections_max = core.share_per_worker(limits.connections).min(for_clients);
    core.overload.descriptors_max = descriptors;
    core.overload.connections_max = connections_max;
    // Connections that were accepted before accepting paused need slots too.
    let conns_max = connections_max as u32 + ACCEPTED_AHEAD_MAX;
    core.conns.raise_bound(conns_max);
    // One exchange for each connection, as many pipelined ones (see `has_pipelining_capacity` in
    // `overload/capacity.rs`), and refreshes.
    let ahead_max = (connections_max + REFRESHES_MAX) as u32;
    core.exchanges.raise_bound((conns_max + ahead_max).min(Token::SLOT_MAX));
    core.names.set_limits(limits);
    core.files.open_max = core.share_per_worker(limits.open_files);
    if let (Some(cache), Some(settings)) = (&core.shared.cache, &core.snapshot.config.cache) {
        let variants = usize::try_from(limits.variants).unwrap_or(usize::MAX);
        cache.set_limits(settings.object_bytes_max(limits), variants);
    }
}

/// Recomputes everything that is derived from the set of snapshots in use.
pub(crate) fn update_for_snapshots<E: Engine>(core: &mut Core<E>) {
    let earlier = core.snapshots.earlier();
    for key in core.origins.apply_snapshots(&core.snapshot, &earlier) {
        close(core, key);
    }
    program_events::close_unused(core);
    let in_use = || earlier.iter().chain([&core.snapshot]);
    let (before_client, before_origin) =
        (core.snapshots.client_timer_max, core.snapshots.origin_timer_max);
    let client = in_use().map(|snapshot| snapshot.client_timer_max).min().unwrap_or_default();
    let origin = in_use().map(|snapshot| snapshot.origin_timer_max).min().unwrap_or_default();
    let in_use_count = 1 + earlier.len() as u64;
    (core.snapshots.client_timer_max, core.snapshots.origin_timer_max) = (client, origin);
    // Timers that were set further ahead would miss a new, shorter wait.
    let now = core.engine.now();
    if client < before_client {
        for (_, conn) in core.conns.iter() {
            core.timers.bring_forward(conn.timer, now + client);
        }
    }
    if origin < before_origin {
        for (_, connection) in core.origins.connections.iter() {
            core.timers.bring_forward(connection.timer, now + origin);
        }
    }
    core.counters.config_generation.set(core.snapshot.config.number);
    core.counters.configs_in_use.set(in_use_count);
}

/// Drops the snapshots that are no longer in use. Called once a turn.
pub(crate) fn drop_unused_snapshots<E: Engine>(core: &mut Core<E>) {
    if core.snapshots.is_empty() {
        return;
    }
    let Core { snapshots, listeners, .. } = core;
    if snapshots.forget_unused(|listener| listeners.is_retiring(listener)) {
        update_for_snapshots(core);
    }
}

/// Closes idle connections of listeners that left the configuration. Connections that were accepted
/// only just now are left for the next call, since their first request is on its way.
pub(crate) fn close_idle_of_removed<E: Engine>(core: &mut Core<E>) {
    let now = core.engine.now();
    let mut left = false;
    let mut idle: Vec<Key> = Vec::new();
    for (key, conn) in core.conns.iter() {
        if conn.is_idle() && core.snapshots.is_removed(conn.listener) {
            match conn.may_close_idle(now) {
                true => idle.push(key),
                false => left = true,
            }
        }
    }
    core.snapshots.has_idle_on_removed = left;
    for key in idle {
        client::finish(core, key);
    }
}

/// The number of connections that an engine may have accepted before it learns that accepting is
/// paused.
const ACCEPTED_AHEAD_MAX: u32 = 1024;
