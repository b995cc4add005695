//! The configurations that a worker uses at a time. The one in force is the worker's own field;
//! here are those that something under way began with, and those of listeners that have left the
//! configuration while connections from them live on.
//!
//! A snapshot is used by whoever holds it, so that it is freed with its last exchange. Nobody but
//! its users keeps it, and a connection only where its listener is gone.

use std::rc::{Rc, Weak};
use std::time::Duration;

use crate::snapshot::Snapshot;

/// Snapshots beside the one in force.
#[derive(Debug)]
pub(crate) struct Snapshots {
    earlier: Vec<Weak<Snapshot>>,
    removed: Vec<RemovedListener>,
    /// Connections of listeners that are gone may wait for a request that will not be served.
    pub(crate) has_idle_on_removed: bool,
    /// The shortest waits of all snapshots in use: how far ahead the timers of connections are set
    /// at most, so that a new wait never needs to set one, whichever snapshot it is under.
    pub(crate) client_check: Duration,
    pub(crate) origin_check: Duration,
}

/// A listener that is not in the configuration in force.
#[derive(Debug)]
struct RemovedListener {
    listener: u16,
    /// The last one that had it. Each connection is served one more exchange by it, at most.
    snapshot: Rc<Snapshot>,
    /// Open connections that came in there.
    connections: usize,
}

impl Snapshots {
    /// With nothing beside `present`.
    pub(crate) fn new(present: &Snapshot) -> Self {
        Self {
            earlier: Vec::new(),
            removed: Vec::new(),
            has_idle_on_removed: false,
            client_check: present.client_check,
            origin_check: present.origin_check,
        }
    }

    /// A snapshot is in force no longer.
    pub(crate) fn retire(&mut self, before: &Rc<Snapshot>) {
        self.earlier.push(Rc::downgrade(before));
    }

    /// A listener, from which so many connections are open, was last in `snapshot`.
    pub(crate) fn remove_listener(
        &mut self,
        listener: u16,
        snapshot: &Rc<Snapshot>,
        connections: usize,
    ) {
        self.removed.push(RemovedListener { listener, snapshot: snapshot.clone(), connections });
        self.has_idle_on_removed = true;
    }

    /// A listener is back in the configuration.
    pub(crate) fn restore_listener(&mut self, listener: u16) {
        self.removed.retain(|gone| gone.listener != listener);
    }

    /// The snapshot by which a connection is served whose listener is gone.
    pub(crate) fn of_removed_listener(&self, listener: u16) -> Option<&Rc<Snapshot>> {
        let found = self.removed.iter().find(|gone| gone.listener == listener);
        found.map(|gone| &gone.snapshot)
    }

    /// Whether a listener is gone: its connections end with the exchange that they serve.
    pub(crate) fn is_removed(&self, listener: u16) -> bool {
        !self.removed.is_empty() && self.of_removed_listener(listener).is_some()
    }

    /// A connection came in, perhaps at a listener that is gone: it was in its queue.
    pub(crate) fn add_connection(&mut self, listener: u16) {
        for gone in self.removed.iter_mut().filter(|gone| gone.listener == listener) {
            gone.connections += 1;
            self.has_idle_on_removed = true;
        }
    }

    /// A connection is closed.
    pub(crate) fn remove_connection(&mut self, listener: u16) {
        for gone in self.removed.iter_mut().filter(|gone| gone.listener == listener) {
            gone.connections -= 1;
        }
    }

    /// Forgets what nobody uses any more: listeners without a connection of which `is_retiring`
    /// says that none will come, and snapshots. True when there are fewer snapshots.
    pub(crate) fn forget_unused(&mut self, is_retiring: impl Fn(u16) -> bool) -> bool {
        self.removed.retain(|gone| gone.connections > 0 || is_retiring(gone.listener));
        let before = self.earlier.len();
        self.earlier.retain(|snapshot| snapshot.strong_count() > 0);
        self.earlier.len() < before
    }

    /// Whether there is nothing beside the snapshot in force.
    pub(crate) fn is_empty(&self) -> bool {
        self.earlier.is_empty() && self.removed.is_empty()
    }

    /// Those in use beside the one in force.
    pub(crate) fn earlier(&self) -> Vec<Rc<Snapshot>> {
        self.earlier.iter().filter_map(Weak::upgrade).collect()
    }
}
