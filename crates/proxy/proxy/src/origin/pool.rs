//! A worker's connections to its origins: in use, or idle until the next request to the same place.
//! `state.rs` knows the origins, `health_sync.rs` their health, and `queue.rs` the requests that
//! wait for room at one.
//!
//! A connection becomes idle only if its response was read to the end, nothing follows it, and
//! nothing ties it to one client. An idle connection has a receive outstanding: an end of stream,
//! or bytes that no request caused, end the connection before an exchange can get them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use millrace_engine::{Instant, Key, Table};
use millrace_splice::Thresholds;

use crate::conn::wire::Wire;
use crate::origin::{
    ConnectRulesId, ConnectionUser, OriginConn, OriginId, OriginUse, rules::ConnectRuleSets,
    shared_health::CheckResult, state::OriginState,
};

/// All origins of a worker.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    pub(crate) connections: Table<OriginConn>,
    pub(super) by_identity: HashMap<Box<[u8]>, OriginId>,
    pub(super) rules: ConnectRuleSets,
    /// Those of the snapshot in force.
    pub(super) rules_in_force: Vec<ConnectRulesId>,
    pub(super) states: Vec<Option<OriginState>>,
    pub(super) free_ids: Vec<u32>,
    /// Idle connections in the order in which they became idle. An entry is stale when its
    /// connection is gone or has been used since: `idle_since` tells.
    pub(super) idle_order: VecDeque<(Key, Instant)>,
    pub(super) idle_count: usize,
    /// The checks that the snapshots in use pick by.
    pub(super) checks: Vec<Arc<CheckResult>>,
    /// The version of the board that was listened to last, or one that it has not now.
    pub(super) health_version: u64,
    /// Whether nothing keeps any configured origin from being asked: no ejection, and no check
    /// that fails.
    pub(super) all_healthy: bool,
    /// Whether no response of any origin would change anything, as far as was looked: no configured
    /// one has failed since it last answered.
    pub(super) all_pristine: bool,
    /// Those that there is something to tell of.
    pub(super) pending_reports: Vec<OriginId>,
    /// Exchanges in the queues of all.
    pub(super) queued_count: usize,
    /// Those with a queue, and perhaps some that had one.
    pub(super) queues: Vec<OriginId>,
    /// Those where there was a queue when room was made.
    pub(super) with_capacity: Vec<OriginId>,
    /// Whose counters of an origin are written here.
    pub(crate) worker: usize,
    pub(super) identity_buffer: Vec<u8>,
    /// Idle connections by the client connection that they are pinned to. An entry may be stale:
    /// its connection in use again, or gone.
    pub(super) pinned: HashMap<Key, Vec<Key>>,
    /// A body below this length may come with its header.
    pub(super) small_below: u64,
}

impl Origins {
    pub(crate) fn new(connections_max: u32, thresholds: &Thresholds) -> Self {
        Self {
            connections: Table::new(connections_max),
            all_healthy: true,
            all_pristine: true,
            small_below: thresholds.small_below,
            ..Self::default()
        }
    }

    /// A connection to the origin is to be opened; [`Origins::remove`] or
    /// [`Origins::note_closed`] follows.
    pub(crate) fn reserve_connection(&mut self, id: OriginId) {
        self.state_mut(id).open_count += 1;
    }

    /// A connection to the origin was not opened after all, or is closed.
    pub(crate) fn release_connection(&mut self, id: OriginId) {
        let known = self.state_mut(id);
        assert!(known.open_count > 0, "noted when it was to be opened");
        known.open_count -= 1;
        self.note_capacity(id);
    }

    /// Whether the origin may have a further connection, where it may have `max`.
    pub(crate) fn has_capacity(&self, id: OriginId, max: usize) -> bool {
        self.state(id).open_count < max
    }

    /// The number of idle connections to all origins.
    pub(crate) fn idle_count(&self) -> usize {
        self.idle_count
    }

    /// Takes the connection that became idle last and is pinned to `owner` (`None`: pinned to no
    /// client), if any: it is the least likely to have ended.
    ///
    /// Connections that `is_announced` reports are passed over: they have ended in this turn, or
    /// brought bytes that are no response to what is sent now. So are connections whose last
    /// request the engine has not yet reported as sent, since its response came before.
    pub(crate) fn take_idle(
        &mut self,
        id: OriginId,
        exchange: Key,
        owner: Option<Key>,
        is_announced: impl Fn(&Wire) -> bool,
    ) -> Option<OriginUse> {
        let Self { states: known, connections, .. } = self;
        let idle = &mut known[id.0 as usize].as_mut().expect("an origin in use is known").idle;
        let is_fit = |key: &Key| {
            connections.get(*key).is_some_and(|it| {
                it.pinned_to == owner && !it.wire.is_sending() && !is_announced(&it.wire)
            })
        };
        let key = match idle.pop_if(|key| is_fit(key)) {
            Some(key) => key,
            None => idle.remove(idle.iter().rposition(is_fit)?),
        };
        self.idle_count -= 1;
        let connection = connections.get_mut(key).expect("idle connections are open");
        Some(connection.begin_use(key, ConnectionUser::Exchange(exchange)))
    }

    /// Ends the use of a connection, which becomes idle. Returns the client connection that it is
    /// pinned to, if any. The caller enforces the limits by [`Origins::surplus`].
    pub(crate) fn make_idle(&mut self, key: Key, now: Instant) -> Option<Key> {
        let connection = self.connections.get_mut(key).expect("the caller holds it open");
        connection.end_use();
        connection.idle_since = now;
        let (id, owner) = (connection.origin, connection.pinned_to);
        self.state_mut(id).idle.push(key);
        self.note_capacity(id);
        self.idle_count += 1;
        self.idle_order.push_back((key, now));
        if self.idle_order.len() > 2 * self.idle_count + 64 {
            let Self { idle_order, connections, .. } = self;
            idle_order.retain(|entry| is_current(connections, *entry));
        }
        owner
    }

    /// An idle connection that should be closed: the oldest of an origin with more than
    /// `per_origin`, or of all while there are more than `all`.
    pub(crate) fn surplus_idle(
        &mut self,
        id: OriginId,
        per_origin: usize,
        all: usize,
    ) -> Option<Key> {
        if self.state(id).idle.len() > per_origin {
            return self.state(id).idle.first().copied();
        }
        if self.idle_count > all { self.oldest_idle() } else { None }
    }

    /// The connection that has been idle longest.
    pub(crate) fn oldest_idle(&mut self) -> Option<Key> {
        while let Some(&entry) = self.idle_order.front() {
            if is_current(&self.connections, entry) {
                return Some(entry.0);
            }
            self.idle_order.pop_front();
        }
        None
    }

    /// Removes a connection, idle or in use, from the table. The caller closes its wire.
    pub(crate) fn remove(&mut self, key: Key) -> Option<OriginConn> {
        let connection = self.connections.get(key)?;
        let (id, is_idle) = (connection.origin, connection.is_idle());
        if is_idle {
            let idle = &mut self.state_mut(id).idle;
            let position = idle.iter().rposition(|&other| other == key);
            idle.remove(position.expect("an idle connection is in its origin's list"));
            self.idle_count -= 1;
        }
        self.release_connection(id);
        if is_idle {
            self.forget_unused(id);
        }
        self.connections.remove(key)
    }
}

fn is_current(connections: &Table<OriginConn>, (key, since): (Key, Instant)) -> bool {
    connections.get(key).is_some_and(|it| it.is_idle() && it.idle_since == since)
}
