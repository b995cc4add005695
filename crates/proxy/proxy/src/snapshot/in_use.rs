//! The snapshots that a worker uses besides the one in force, which is `Core::snapshot`. These are
//! the snapshots of exchanges in progress, and those of removed listeners that still have
//! connections.
//!
//! An exchange holds a reference to its snapshot, so that the snapshot is freed with its last
//! exchange. A connection holds none. A removed listener holds one for its connections.

use std::rc::{Rc, Weak};
use std::time::Duration;

use crate::snapshot::Snapshot;

/// The snapshots besides the one in force, and the removed listeners.
#[derive(Debug)]
pub(crate) struct Snapshots {
    earlier: Vec<Weak<Snapshot>>,
    removed: Vec<RemovedListener>,
    /// Whether connections of removed listeners may be idle. They have to be closed, because they
    /// keep the snapshots of their listeners in use.
    pub(crate) has_idle_on_removed: bool,
    /// The shortest time limit of a client connection in all snapshots in use: see
    /// [`Snapshot::client_timer_max`]. An exchange may have any of these snapshots.
    pub(crate) client_timer_max: Duration,
    /// The shortest time limit of an origin connection in all snapshots in use.
    pub(crate) origin_timer_max: Duration,
}

/// A listener that is not in the configuration in force, but still has connections or may get some
/// from its accept queue.
#[derive(Debug)]
struct RemovedListener {
    listener: u16,
    /// The last snapshot that had the listener. If one of its connections gets another request, the
    /// exchange begins with this snapshot, and the connection closes after it.
    snapshot: Rc<Snapshot>,
    /// The number of open connections that the listener accepted.
    connections: usize,
}

impl Snapshots {
    /// Creates the state for a worker whose only snapshot is `present`.
    pub(crate) fn new(present: &Snapshot) -> Self {
        Self {
            earlier: Vec::new(),
            removed: Vec::new(),
            has_idle_on_removed: false,
            client_timer_max: present.client_timer_max,
            origin_timer_max: present.origin_timer_max,
        }
    }

    /// Records a snapshot that is no longer in force.
    pub(crate) fn retire(&mut self, before: &Rc<Snapshot>) {
        self.earlier.push(Rc::downgrade(before));
    }

    /// Records a removed listener, which was last in `snapshot` and has this many connections.
    pub(crate) fn remove_listener(
        &mut self,
        listener: u16,
        snapshot: &Rc<Snapshot>,
        connections: usize,
    ) {
        self.removed.push(RemovedListener { listener, snapshot: snapshot.clone(), connections });
        self.has_idle_on_removed = true;
    }

    /// Records that a listener is in the configuration again.
    pub(crate) fn restore_listener(&mut self, listener: u16) {
        self.removed.retain(|entry| entry.listener != listener);
    }

    /// Returns the snapshot for connections of a removed listener.
    pub(crate) fn of_removed_listener(&self, listener: u16) -> Option<&Rc<Snapshot>> {
        let found = self.removed.iter().find(|entry| entry.listener == listener);
        found.map(|entry| &entry.snapshot)
    }

    /// Returns whether a listener was removed, so that its connections close after their present
    /// exchange.
    pub(crate) fn is_removed(&self, listener: u16) -> bool {
        !self.removed.is_empty() && self.of_removed_listener(listener).is_some()
    }

    /// Counts a new connection if its listener was removed, which may happen while the connection
    /// is in the accept queue.
    pub(crate) fn add_connection(&mut self, listener: u16) {
        for entry in self.removed.iter_mut().filter(|entry| entry.listener == listener) {
            entry.connections += 1;
            self.has_idle_on_removed = true;
        }
    }

    /// Stops counting a connection that was closed.
    pub(crate) fn remove_connection(&mut self, listener: u16) {
        for entry in self.removed.iter_mut().filter(|entry| entry.listener == listener) {
            entry.connections -= 1;
        }
    }

    /// Drops snapshots without users. Drops removed listeners that have no connections and for
    /// which `is_retiring` returns false, which means that they get no more. Returns true if a
    /// snapshot was dropped.
    pub(crate) fn forget_unused(&mut self, is_retiring: impl Fn(u16) -> bool) -> bool {
        self.removed.retain(|entry| entry.connections > 0 || is_retiring(entry.listener));
        let before = self.earlier.len();
        self.earlier.retain(|snapshot| snapshot.strong_count() > 0);
        self.earlier.len() < before
    }

    /// Returns whether only the snapshot in force is in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.earlier.is_empty() && self.removed.is_empty()
    }

    /// Returns the snapshots in use besides the one in force.
    pub(crate) fn earlier(&self) -> Vec<Rc<Snapshot>> {
        self.earlier.iter().filter_map(Weak::upgrade).collect()
    }
}
