//! The pool of a worker's origin connections, which are in use or idle. `table.rs` has the table of
//! origins, `health_sync.rs` their health, and `queue.rs` the requests that wait for a connection
//! to their origin.
//!
//! A connection becomes idle only if its response was read to the end, nothing follows it, and no
//! authentication binds it to a client. A pinned connection becomes idle for its own client only.
//! An idle connection has a receive outstanding. An end of stream, or bytes that no request caused,
//! close the connection before an exchange can take it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use millrace_engine::{Instant, Key, Table};
use millrace_fastcgi::Environment;
use millrace_splice::Thresholds;

use crate::origin::{
    ConnectAttempt, ConnectRulesId, ConnectionUser, OriginConn, OriginId, OriginUse,
    program_table::ProgramTable, rules::ConnectRuleSets, shared_health::CheckResult,
    state::OriginState,
};

/// All origins of a worker.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    pub(crate) connections: Table<OriginConn>,
    /// The connections that are being opened.
    pub(crate) attempts: Table<ConnectAttempt>,
    /// The connections to programs that hand over their responses without a copy.
    pub(crate) programs: ProgramTable,
    /// Origins by [`OriginState::identity`].
    pub(super) by_identity: HashMap<Box<[u8]>, OriginId>,
    pub(super) rules: ConnectRuleSets,
    /// The connect rules of the snapshot in force.
    pub(super) rules_in_force: Vec<ConnectRulesId>,
    /// Origins by [`OriginId`]; `None` for an id that is free.
    pub(super) states: Vec<Option<OriginState>>,
    pub(super) free_ids: Vec<u32>,
    /// Idle connections in the order in which they became idle. An entry is stale if its
    /// connection was closed or used since, which its `idle_since` shows.
    pub(super) idle_order: VecDeque<(Key, Instant)>,
    /// The number of idle connections to all origins.
    pub(super) idle_count: usize,
    /// The results of the health checks of all snapshots in use.
    pub(super) checks: Vec<Arc<CheckResult>>,
    /// The version of the shared health that was last applied. [`Origins::invalidate_health`] sets
    /// a version that differs from the present one.
    pub(super) health_version: u64,
    /// Whether no configured origin is ejected and no health check fails.
    pub(super) all_healthy: bool,
    /// Whether no configured origin has failed since its last response, so that a response changes
    /// nothing. If a response ends failures, this stays false until the next report.
    pub(super) all_pristine: bool,
    /// Origins with failures or responses that are not published yet.
    pub(super) pending_reports: Vec<OriginId>,
    /// Whether connections that occupy a process are idle; possibly although none is by now.
    pub(crate) has_idle_processes: bool,
    /// Whether connections that occupy a process have not had a response; possibly although all
    /// have by now.
    pub(crate) has_new_processes: bool,
    /// The number of exchanges in the queues of all origins.
    pub(super) queued_count: usize,
    /// Origins with a queue, and possibly some whose queue is empty by now.
    pub(super) queues: Vec<OriginId>,
    /// Origins whose first queued exchange may continue: a connection ended or became idle, or an
    /// exchange left the queue.
    pub(super) gained_capacity: Vec<OriginId>,
    /// The index of the worker, which selects its counters in each origin.
    pub(crate) worker: usize,
    /// A buffer to compose an [`OriginState::identity`] without an allocation.
    pub(super) identity_buffer: Vec<u8>,
    /// A buffer to compose the environment of a program without an allocation.
    pub(super) environment: Environment,
    /// Idle connections by the client connection that they are pinned to. An entry is stale if its
    /// connection is in use again or was closed.
    pub(super) pinned: HashMap<Key, Vec<Key>>,
    /// Response bodies below this length, in bytes, are received together with their header.
    pub(super) small_below: u64,
}

impl Origins {
    pub(crate) fn new(connections_max: u32, thresholds: &Thresholds) -> Self {
        Self {
            connections: Table::new(connections_max),
            attempts: Table::new(connections_max),
            all_healthy: true,
            all_pristine: true,
            small_below: thresholds.small_below,
            ..Self::default()
        }
    }

    /// Counts a connection that is about to be opened. [`Origins::remove`] or
    /// [`Origins::release_connection`] follows.
    pub(crate) fn reserve_connection(&mut self, id: OriginId) {
        self.state_mut(id).open_count += 1;
    }

    /// Stops counting a connection that was closed or could not be opened.
    pub(crate) fn release_connection(&mut self, id: OriginId) {
        let state = self.state_mut(id);
        assert!(state.open_count > 0, "it was counted before it was opened");
        state.open_count -= 1;
        self.note_capacity(id);
    }

    /// Returns whether the origin has fewer than `max` connections.
    pub(crate) fn has_capacity(&self, id: OriginId, max: usize) -> bool {
        self.state(id).open_count < max
    }

    /// Returns the number of idle connections to all origins.
    pub(crate) fn idle_count(&self) -> usize {
        self.idle_count
    }

    /// Takes an idle connection that is pinned to `client`, or to no client if that is `None`. If
    /// there are several, takes the one that became idle last, which is the least likely to have
    /// ended.
    ///
    /// Connections for which `is_unfit` returns true are skipped. Connections whose previous
    /// response arrived before the engine reported its request as sent are skipped too.
    pub(crate) fn take_idle(
        &mut self,
        id: OriginId,
        exchange: Key,
        client: Option<Key>,
        is_unfit: impl Fn(&OriginConn) -> bool,
    ) -> Option<OriginUse> {
        let Self { states, connections, .. } = self;
        let idle =
            &mut states[id.0 as usize].as_mut().expect("an origin in use is in the table").idle;
        let is_fit = |key: &Key| {
            connections
                .get(*key)
                .is_some_and(|it| it.pinned_to == client && it.wire.has_sent_all() && !is_unfit(it))
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
    /// pinned to, if any. The caller enforces the limits with [`Origins::surplus_idle`].
    #[inline(always)]
    pub(crate) fn make_idle(&mut self, key: Key, now: Instant) -> Option<Key> {
        let connection = self.connections.get_mut(key).expect("the caller holds it open");
        connection.end_use();
        connection.idle_since = now;
        let (id, client) = (connection.origin, connection.pinned_to);
        self.state_mut(id).idle.push(key);
        self.note_capacity(id);
        self.idle_count += 1;
        self.idle_order.push_back((key, now));
        if self.idle_order.len() > 2 * self.idle_count + 64 {
            self.drop_outdated_order();
        }
        client
    }

    #[cold]
    #[inline(never)]
    fn drop_outdated_order(&mut self) {
        let Self { idle_order, connections, .. } = self;
        idle_order.retain(|entry| is_current(connections, *entry));
    }

    /// Returns an idle connection that exceeds a limit: the oldest one of the origin if that has
    /// more than `per_origin`, or the oldest of all origins if there are more than `all`.
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

    /// Returns the connection that has been idle longest.
    pub(crate) fn oldest_idle(&mut self) -> Option<Key> {
        while let Some(&entry) = self.idle_order.front() {
            if is_current(&self.connections, entry) {
                return Some(entry.0);
            }
            self.idle_order.pop_front();
        }
        None
    }

    /// Removes a connection from the table, whether it is idle or in use. The caller closes its
    /// wire.
    pub(crate) fn remove(&mut self, key: Key) -> Option<OriginConn> {
        let connection = self.connections.get(key)?;
        let (id, is_idle) = (connection.origin, connection.is_idle());
        if connection.uses.is_listed {
            self.state_mut(id).pipelines.retain(|&other| other != key);
        }
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
