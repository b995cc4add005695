//! The tables and pools of a worker, its engine, and what it shares with others. The core has no
//! behaviour: stages and transfers work on it, and the worker drives them.

use std::rc::Rc;
use std::sync::Arc;

use millrace_engine::{Engine, Key, Kind, Mail, Table, Timers};
use millrace_splice::Pipes;
use millrace_store::{Cache, Waiter};

use crate::auth::Authenticator;
use crate::cached::{CacheWaits, fill::Fill};
use crate::conn::{Conn, listeners::Listeners};
use crate::counters::Counters;
use crate::exchange::{Exchange, access_log::LogBuffer, pool::ExchangePool};
use crate::names::Resolver;
use crate::origin::{Attempt, Dial, OriginConn, Origins};
use crate::overload::{Overload, per_client::Clients};
use crate::shared::Shared;
use crate::snapshot::{Snapshot, in_use::Snapshots};
use crate::worker::{drain::DrainState, message::WorkerMessage, wakes::WakeQueue};

/// What the stages of one worker work on.
pub(crate) struct Core<E: Engine> {
    pub(crate) engine: E,
    /// The number of this worker, from 0.
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    /// Those of this worker among the shared ones.
    pub(crate) counters: Arc<Counters>,
    /// The snapshot in force.
    pub(crate) snapshot: Rc<Snapshot>,
    pub(crate) snapshots: Snapshots,
    pub(crate) conns: Table<Conn>,
    pub(crate) exchanges: Table<Box<Exchange>>,
    pub(crate) exchange_pool: ExchangePool,
    pub(crate) attempts: Table<Attempt>,
    pub(crate) fills: Table<Fill>,
    pub(crate) origins: Origins,
    pub(crate) names: Resolver<Key>,
    pub(crate) authenticator: Authenticator<E::Waker>,
    pub(crate) timers: Timers,
    pub(crate) clients: Clients,
    pub(crate) listeners: Listeners,
    pub(crate) overload: Overload,
    pub(crate) pipes: Pipes,
    pub(crate) wakes: WakeQueue,
    pub(crate) mail: Mail<WorkerMessage<E::Detached>, E::Waker>,
    pub(crate) cache_waits: CacheWaits,
    /// The header being written.
    pub(crate) out: Vec<u8>,
    pub(crate) log: LogBuffer,
    pub(crate) drain: DrainState,
}

/// An exchange and what it uses, borrowed apart. `C`: its client connection; an exchange without a
/// client is a refresh.
pub(crate) struct ExchangeParts<'a, E, C> {
    pub(crate) engine: &'a mut E,
    pub(crate) pipes: &'a mut Pipes,
    pub(crate) timers: &'a mut Timers,
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a Counters,
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) log: &'a mut LogBuffer,
    pub(crate) snapshots: &'a Snapshots,
    pub(crate) drain: &'a DrainState,
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) client: C,
    /// Its origin connection, while it has one.
    pub(crate) origin: Option<&'a mut OriginConn>,
}

impl<E> ExchangeParts<'_, E, &mut Conn> {
    /// Whether the exchange is the last one of its connection whatever the client wants.
    #[inline]
    pub(crate) fn must_close(&self) -> bool {
        self.drain.is_draining || self.snapshots.is_gone(self.client.listener)
    }
}

impl<E: Engine> Core<E> {
    /// An exchange that its caller knows to be under way.
    #[inline]
    pub(crate) fn exchange(&mut self, key: Key) -> &mut Exchange {
        self.exchanges.get_mut(key).expect("the caller's exchange is under way")
    }

    /// A client connection that its caller knows to be open.
    #[inline]
    pub(crate) fn conn(&mut self, key: Key) -> &mut Conn {
        self.conns.get_mut(key).expect("the caller's connection is open")
    }

    /// An exchange that its caller knows to be under way, and what it uses.
    #[inline]
    pub(crate) fn parts(&mut self, key: Key) -> ExchangeParts<'_, E, Option<&mut Conn>> {
        self.borrow_parts(key, |client| client)
    }

    /// The same for an exchange that has a client.
    #[inline]
    pub(crate) fn parts_with_client(&mut self, key: Key) -> ExchangeParts<'_, E, &mut Conn> {
        self.borrow_parts(key, |client| {
            client.expect("a connection outlives its exchanges, and a refresh has none")
        })
    }

    #[inline(always)]
    fn borrow_parts<'a, C>(
        &'a mut self,
        key: Key,
        of_client: impl FnOnce(Option<&'a mut Conn>) -> C,
    ) -> ExchangeParts<'a, E, C> {
        let exchange = self.exchanges.get_mut(key).expect("the caller's exchange is under way");
        let client = of_client(exchange.conn.and_then(|conn| self.conns.get_mut(conn)));
        let origin = exchange.transaction.connection.as_ref();
        let origin = origin.and_then(|it| self.origins.connections.get_mut(it.slot()));
        ExchangeParts {
            engine: &mut self.engine,
            pipes: &mut self.pipes,
            timers: &mut self.timers,
            shared: &self.shared,
            counters: &self.counters,
            out: &mut self.out,
            log: &mut self.log,
            snapshots: &self.snapshots,
            drain: &self.drain,
            exchange,
            client,
            origin,
        }
    }

    /// The race for a connection of an exchange that is in one.
    pub(crate) fn dial(&mut self, key: Key) -> &mut Dial {
        self.exchange(key).transaction.dial.as_mut().expect("the caller's race is under way")
    }

    /// The cache; its caller knows that there is one.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        self.shared.cache.as_ref().expect("whatever uses the cache has found one")
    }

    /// How the cache wakes an exchange or a fill of this worker.
    pub(crate) fn waiter(&self, key: Key, kind: Kind) -> Waiter {
        Waiter { worker: self.index as u16, token: key.token(kind).to_bits() }
    }

    /// Queues wake-ups of those that waited for something in the cache.
    pub(crate) fn wake(&mut self, waiters: impl IntoIterator<Item = Waiter>) {
        self.wakes.add(self.index, &mut self.mail, waiters);
    }

    /// The number of workers of the process.
    pub(crate) fn worker_count(&self) -> u64 {
        self.shared.counters.len() as u64
    }

    /// This worker's share of what the process may have; of nothing nothing, else at least one.
    pub(crate) fn share_per_worker(&self, of_process: u64) -> usize {
        of_process.div_ceil(self.worker_count()) as usize
    }

    /// The snapshot and the place of the service that a connection's next exchange is served by.
    pub(crate) fn service_of_listener(&self, listener: u16) -> (&Rc<Snapshot>, u16) {
        if let Some(found) = self.snapshot.listener(listener) {
            return (&self.snapshot, found.service as u16);
        }
        let last = self.snapshots.of_gone(listener).expect("kept while there is a connection");
        let found = last.listener(listener).expect("the last snapshot that had it");
        (last, found.service as u16)
    }

    /// Whether a connection that came in at `listener` ends with the exchange that it serves.
    pub(crate) fn must_close(&self, listener: u16) -> bool {
        self.drain.is_draining || self.snapshots.is_gone(listener)
    }
}
