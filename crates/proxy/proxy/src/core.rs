//! The tables and pools of a worker, its engine, and the state that it shares with other workers.
//! The core has no behaviour: stages and transfers work on it, and the worker drives them.

use std::rc::Rc;
use std::sync::Arc;

use millrace_engine::{Engine, Key, PeerMailboxes, Table, Timers, TokenKind};
use millrace_splice::Pipes;
use millrace_store::{Cache, WaiterId};

use crate::auth::Authenticator;
use crate::cached::{CachedState, fill::Fill};
use crate::conn::{Conn, listeners::Listeners};
use crate::counters::Counters;
use crate::exchange::{Exchange, access_log::LogBuffer, pool::ExchangePool};
use crate::files::FileTable;
use crate::names::Resolver;
use crate::origin::{Dial, OriginConn, Origins};
use crate::overload::Overload;
use crate::secure::SecureContext;
use crate::shared::SharedState;
use crate::snapshot::{Snapshot, in_use::Snapshots};
use crate::worker::{drain::DrainState, message::WorkerMessage, wakes::WakeQueue};

/// The state of one worker, on which its stages work.
pub(crate) struct Core<E: Engine> {
    pub(crate) engine: E,
    /// The index of this worker, from 0.
    pub(crate) index: usize,
    pub(crate) shared: Arc<SharedState>,
    /// This worker's entry of `shared.counters`.
    pub(crate) counters: Arc<Counters>,
    /// The configuration snapshot in force.
    pub(crate) snapshot: Rc<Snapshot>,
    pub(crate) snapshots: Snapshots,
    pub(crate) conns: Table<Conn>,
    pub(crate) exchanges: Table<Box<Exchange>>,
    pub(crate) exchange_pool: ExchangePool,
    pub(crate) fills: Table<Fill>,
    pub(crate) origins: Origins,
    pub(crate) names: Resolver<Key>,
    pub(crate) authenticator: Authenticator<E::Waker>,
    pub(crate) timers: Timers,
    pub(crate) listeners: Listeners,
    pub(crate) overload: Overload,
    pub(crate) pipes: Pipes,
    pub(crate) secure: SecureContext,
    pub(crate) wakes: WakeQueue,
    pub(crate) mail: PeerMailboxes<WorkerMessage<E::DetachedFd>, E::Waker>,
    pub(crate) cached: CachedState,
    pub(crate) files: FileTable,
    /// Scratch buffer in which the next header is written.
    pub(crate) out: Vec<u8>,
    pub(crate) log: LogBuffer,
    pub(crate) drain: DrainState,
}

/// An exchange and the objects that it uses, borrowed separately.
///
/// `C` is the client connection: `&mut Conn`, or `Option<&mut Conn>` where the exchange may be a
/// refresh, which has no client.
pub(crate) struct ExchangeParts<'a, E, C> {
    pub(crate) engine: &'a mut E,
    pub(crate) pipes: &'a mut Pipes,
    pub(crate) timers: &'a mut Timers,
    pub(crate) shared: &'a SharedState,
    pub(crate) counters: &'a Counters,
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) log: &'a mut LogBuffer,
    pub(crate) snapshots: &'a Snapshots,
    pub(crate) drain: &'a DrainState,
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) client: C,
    /// The origin connection that the exchange uses, if any.
    pub(crate) origin: Option<&'a mut OriginConn>,
}

impl<E> ExchangeParts<'_, E, &mut Conn> {
    /// Returns whether the client connection has to close after this exchange, even if the client
    /// would keep it open.
    #[inline]
    pub(crate) fn must_close(&self) -> bool {
        self.drain.is_draining || self.snapshots.is_removed(self.client.listener)
    }
}

impl<E: Engine> Core<E> {
    /// Returns an exchange that the caller knows to be in the table.
    #[inline]
    pub(crate) fn exchange(&mut self, key: Key) -> &mut Exchange {
        self.exchanges.get_mut(key).expect("the caller's exchange is in the table")
    }

    /// Returns a client connection that the caller knows to be open.
    #[inline]
    pub(crate) fn conn(&mut self, key: Key) -> &mut Conn {
        self.conns.get_mut(key).expect("the caller's connection is open")
    }

    /// Returns an exchange that the caller knows to be in the table, with the objects that it uses.
    #[inline]
    pub(crate) fn parts(&mut self, key: Key) -> ExchangeParts<'_, E, Option<&mut Conn>> {
        self.borrow_parts(key, |client| client)
    }

    /// Like [`Core::parts`], for an exchange that has a client.
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
        let exchange = self.exchanges.get_mut(key).expect("the caller's exchange is in the table");
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

    /// Returns the connection attempts of an exchange that is opening an origin connection.
    pub(crate) fn dial(&mut self, key: Key) -> &mut Dial {
        self.exchange(key)
            .transaction
            .dial
            .as_mut()
            .expect("the caller's exchange is opening a connection")
    }

    /// Returns the cache. The caller knows that the process has one.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        self.shared.cache.as_ref().expect("the caller has checked that there is a cache")
    }

    /// Returns the waiter through which the cache wakes an exchange or a fill of this worker.
    pub(crate) fn waiter(&self, key: Key, kind: TokenKind) -> WaiterId {
        WaiterId { worker: self.index as u16, token: key.token(kind).to_bits() }
    }

    /// Queues wake-ups for objects that waited for the cache.
    pub(crate) fn wake(&mut self, waiters: impl IntoIterator<Item = WaiterId>) {
        self.wakes.add(self.index, &mut self.mail, waiters);
    }

    /// Returns the number of workers of the process.
    pub(crate) fn worker_count(&self) -> u64 {
        self.shared.counters.len() as u64
    }

    /// Returns this worker's share of a limit of the whole process: at least 1, unless the limit is
    /// 0.
    pub(crate) fn share_per_worker(&self, of_process: u64) -> usize {
        of_process.div_ceil(self.worker_count()) as usize
    }

    /// Returns the snapshot for the next exchange of a connection that was accepted by `listener`,
    /// and the index of its service in that snapshot.
    pub(crate) fn service_of_listener(&self, listener: u16) -> (&Rc<Snapshot>, u16) {
        if let Some(found) = self.snapshot.listener(listener) {
            return (&self.snapshot, found.service as u16);
        }
        let last = self
            .snapshots
            .of_removed_listener(listener)
            .expect("the last snapshot of a listener is kept while it has connections");
        let found = last.listener(listener).expect("the last snapshot of a listener has it");
        (last, found.service as u16)
    }

    /// Returns whether connections that are accepted by `listener` use TLS.
    pub(crate) fn is_secured(&self, listener: u16) -> bool {
        let (snapshot, _) = self.service_of_listener(listener);
        snapshot.listener(listener).is_some_and(|listener| listener.tls)
    }

    /// Returns whether a connection that was accepted by `listener` has to close after its present
    /// exchange.
    pub(crate) fn must_close(&self, listener: u16) -> bool {
        self.drain.is_draining || self.snapshots.is_removed(listener)
    }
}
