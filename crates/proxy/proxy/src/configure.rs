//! A new configuration comes into force, between two turns. No connection is touched: an exchange
//! goes on under the snapshot that it began with, and the next one of its connection begins under
//! the new one. See docs/design/reload.md.

use std::rc::Rc;
use std::sync::Arc;

use millrace_config::Config;
use millrace_engine::{Engine, Error, Key, Token};

use crate::conn::Conn;
use crate::refresh::REFRESHES_MAX;
use crate::snapshot::Snapshot;
use crate::worker::{ACCEPTED_AHEAD_MAX, Worker, is_idle};

impl<E: Engine> Worker<E> {
    /// Goes on under `config`, if that is newer than what is in force. `sockets` are those of
    /// listeners that are new in it, by their numbers.
    pub(crate) fn configure(&mut self, config: Arc<Config>, sockets: Vec<(u16, E::Detached)>) {
        if self.draining || config.number <= self.snapshot.config.number {
            // A worker that took another's place began with what its predecessor was told of.
            for (_, socket) in sockets {
                if let Ok(fd) = self.engine.adopt(socket) {
                    self.engine.close(fd);
                }
            }
            return;
        }
        let now = self.engine.now();
        let present = Rc::new(Snapshot::new(config, now, &mut self.origins, &self.shared));
        let before = std::mem::replace(&mut self.snapshot, present);
        self.snapshots.retire(&before);
        self.change_listeners(&before, sockets);
        drop(before);
        self.follow_limits();
        self.follow_snapshots();
        self.close_gone();
    }

    fn change_listeners(&mut self, before: &Rc<Snapshot>, sockets: Vec<(u16, E::Detached)>) {
        let present = self.snapshot.clone();
        for old in &before.config.listeners {
            let Some(new) = present.listener(old.number) else {
                let is_of = |conn: &&Conn| conn.listener == old.number;
                let connections = self.conns.iter().map(|(_, conn)| conn).filter(is_of).count();
                self.snapshots.lose(old.number, before, connections);
                self.accepting.retire(&mut self.engine, old.number);
                continue;
            };
            let settings = [before.client_congestion(old), present.client_congestion(new)];
            if let [Some(_), None] = settings.map(|setting| setting.of_listener()) {
                // What a system has by default is cubic, or `system_congestion`.
                let name = self.shared.system_congestion.as_deref();
                for fd in self.accepting.fds(old.number) {
                    self.engine.set_congestion(fd, name.unwrap_or(crate::congestion::NEAR));
                }
            }
            self.set_up_listener(new.number);
        }
        let was_paused = self.accepting.is_paused();
        for (number, socket) in sockets {
            self.snapshots.regain(number);
            if let Err(error) = self.take_listener(number, socket) {
                let (index, notice) = (self.index, self.shared.notice);
                notice(&format!("worker {index} cannot take listener {number} over: {error}"));
            }
        }
        if !was_paused {
            self.accepting.resume(&mut self.engine);
        }
    }

    /// Takes a listener of the snapshot in force over. It is armed later.
    pub(crate) fn take_listener(&mut self, number: u16, socket: E::Detached) -> Result<(), Error> {
        let fd = self.engine.adopt(socket)?;
        self.accepting.add(number, fd);
        self.set_up_listener(number);
        Ok(())
    }

    fn set_up_listener(&mut self, number: u16) {
        let listener = self.snapshot.listener(number).expect("one of the snapshot in force");
        let setting = self.snapshot.client_congestion(listener);
        if let Some(name) = setting.of_listener() {
            for fd in self.accepting.fds(number) {
                self.engine.set_congestion(fd, name);
            }
        }
    }

    /// What was worked out from the limits at the start follows them. Tables only grow.
    pub(crate) fn follow_limits(&mut self) {
        let limits = &self.snapshot.config.limits;
        let workers = self.shared.counters.len() as u64;
        // A listener takes two descriptors: the worker's, and the one that the supervisor keeps.
        let more = 2 * self.accepting.len() as i64 - 2 * self.listeners_at_start as i64;
        let descriptors = (self.descriptors_at_start as i64 - more.max(0)).max(2) as usize;
        let for_clients = (descriptors * 7 / 8).max(1);
        let connections_max = (limits.connections.div_ceil(workers) as usize).min(for_clients);
        self.descriptors = descriptors;
        self.connections_max = connections_max;
        // Room for connections that were accepted before accepting paused.
        let conns_max = connections_max as u32 + ACCEPTED_AHEAD_MAX;
        self.conns.raise_bound(conns_max);
        // One for each connection, as many begun ahead (see `Worker::has_room_ahead`), and
        // refreshes.
        let ahead_max = (connections_max + REFRESHES_MAX) as u32;
        self.exchanges.raise_bound((conns_max + ahead_max).min(Token::SLOT_MAX));
        self.names.set_limits(limits);
        if let (Some(cache), Some(settings)) = (&self.shared.cache, &self.snapshot.config.cache) {
            let variants = usize::try_from(limits.variants).unwrap_or(usize::MAX);
            cache.set_limits(settings.object_bytes_max(limits), variants);
        }
    }

    /// The snapshots in use have changed: what is derived from all of them follows.
    pub(crate) fn follow_snapshots(&mut self) {
        let earlier = self.snapshots.earlier();
        for key in self.origins.follow(&self.snapshot, &earlier) {
            self.close_origin(key);
        }
        let living = || earlier.iter().chain([&self.snapshot]);
        let (before_client, before_origin) =
            (self.snapshots.client_check, self.snapshots.origin_check);
        let client = living().map(|snapshot| snapshot.client_check).min();
        let origin = living().map(|snapshot| snapshot.origin_check).min();
        let held = 1 + earlier.len() as u64;
        let (client, origin) = (client.unwrap_or_default(), origin.unwrap_or_default());
        (self.snapshots.client_check, self.snapshots.origin_check) = (client, origin);
        // Timers that were set further ahead would not see a new, shorter wait in time.
        let now = self.engine.now();
        if client < before_client {
            for (_, conn) in self.conns.iter() {
                self.timers.bring_forward(conn.timer, now + client);
            }
        }
        if origin < before_origin {
            for (_, connection) in self.origins.connections.iter() {
                self.timers.bring_forward(connection.timer, now + origin);
            }
        }
        self.counters.snapshot.set(self.snapshot.config.number);
        self.counters.snapshots_held.set(held);
    }

    /// The snapshot and the place of the service that a connection's next exchange is served by.
    pub(crate) fn serving(&self, listener: u16) -> (&Rc<Snapshot>, u16) {
        if let Some(found) = self.snapshot.listener(listener) {
            return (&self.snapshot, found.service as u16);
        }
        let last = self.snapshots.of_gone(listener).expect("kept while there is a connection");
        let found = last.listener(listener).expect("the last snapshot that had it");
        (last, found.service as u16)
    }

    /// Whether a listener's connections can be served: it is in force, or gone and remembered.
    pub(crate) fn knows_listener(&self, listener: u16) -> bool {
        self.snapshot.listener(listener).is_some() || self.snapshots.is_gone(listener)
    }

    /// Whether a connection that came in at `listener` ends with the exchange that it serves.
    pub(crate) fn is_leaving(&self, listener: u16) -> bool {
        self.draining || self.snapshots.is_gone(listener)
    }

    /// Forgets the snapshots that nobody uses any more. Once a turn, if there are any.
    pub(crate) fn forget_snapshots(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let Self { snapshots, accepting, .. } = self;
        if snapshots.forget_unused(|listener| accepting.is_retiring(listener)) {
            self.follow_snapshots();
        }
    }

    /// Closes the connections of listeners that are gone on which no request is to be expected.
    /// Those that have only just come are left for the next time.
    pub(crate) fn close_gone(&mut self) {
        let now = self.engine.now();
        let mut left = false;
        let mut idle: Vec<Key> = Vec::new();
        for (key, conn) in self.conns.iter() {
            if conn.is_idle() && self.snapshots.is_gone(conn.listener) {
                match is_idle(conn, now) {
                    true => idle.push(key),
                    false => left = true,
                }
            }
        }
        self.snapshots.has_idle = left;
        for key in idle {
            self.close_conn(key);
        }
    }
}
