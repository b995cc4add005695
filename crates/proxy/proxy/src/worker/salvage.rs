//! Salvage of a worker that panicked, for the worker that replaces it.
//!
//! The tables of a panicked worker cannot be trusted, so nothing in them is used. Its engine knows
//! every descriptor and resets the connections. The parts that others use outlive the worker: its
//! mailboxes with their unread messages, and its entries in the state that all workers share.

use std::collections::VecDeque;

use millrace_engine::{Engine, MailboxReceiver, PeerMailboxes, Wake};
use millrace_store::WaiterId;

use crate::core::Core;
use crate::counters::Counters;
use crate::worker::{Worker, message::WorkerMessage, wakes::WakeQueue};

/// The parts of a worker that outlive it.
pub struct Salvage<E: Engine> {
    /// The engine, with everything still open. The caller resets the open connections.
    pub engine: E,
    /// Messages from the supervisor.
    pub inbox: MailboxReceiver<WorkerMessage<E::DetachedFd>, E::Waker>,
    /// Messages to and from the other workers.
    pub mail: PeerMailboxes<WorkerMessage<E::DetachedFd>, E::Waker>,
    /// Messages that were taken out of a mailbox and not handled.
    pub messages: VecDeque<WorkerMessage<E::DetachedFd>>,
    /// The number of client connections that are cut off.
    pub connections: usize,
}

impl<E: Engine> Worker<E> {
    /// Takes apart a worker that panicked in a turn. Corrects its traces in the shared state: its
    /// clients are no longer counted, and its gauges are 0.
    pub fn into_salvage(mut self) -> Salvage<E> {
        let core = &mut self.core;
        let connections = core.conns.len();
        // The panic may have happened in the middle of a record.
        let records = &mut core.log.records;
        let whole = records.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        records.truncate(whole);
        core.overload.clients.withdraw(&core.shared.all_clients);
        let Counters {
            connections: open,
            exchanges_open,
            origin_connections,
            pipes,
            buffered_bytes,
            ..
        } = &*core.counters;
        for gauge in [open, exchanges_open, origin_connections, pipes, buffered_bytes] {
            gauge.set(0);
        }
        self.flush_records();
        let Self { core, inbox, messages, .. } = self;
        let Core { engine, mut mail, exchanges, fills, index, shared, mut wakes, .. } = core;
        // This releases the fetch leases of the exchanges and cuts the bodies of the fills. The
        // cache collects the waiters for these as abandoned waiters.
        drop((exchanges, fills));
        if let Some(cache) = &shared.cache {
            let abandoned = cache.take_abandoned_waiters().into_iter().chain(wakes.take_unsent());
            cache.add_abandoned_waiters(wake_others(&mut mail, index, abandoned));
        }
        Salvage { engine, inbox, mail, messages, connections }
    }

    /// Retries the wake-ups that found a full mailbox, because this worker ends. If one fails
    /// again, its waiter is abandoned and continues at its own deadline.
    pub(crate) fn send_late_wakes(&mut self) {
        let core = &mut self.core;
        let late = core.wakes.take_unsent();
        let missed = wake_others(&mut core.mail, core.index, late.into_iter());
        if let Some(cache) = &core.shared.cache {
            cache.add_abandoned_waiters(missed);
        }
    }

    /// Takes over the unread messages of the worker that this one replaces. Call it before the
    /// first turn.
    pub fn adopt_messages(&mut self, messages: VecDeque<WorkerMessage<E::DetachedFd>>) {
        self.messages = messages;
        self.core.counters.worker_restarts.add(1);
        let abandoned = self.core.shared.cache.as_ref().map(|cache| cache.take_abandoned_waiters());
        self.core.wake(abandoned.into_iter().flatten());
    }
}

/// Sends the wake-ups for other workers, which get them even if no worker replaces this one. If the
/// mailbox of a worker is full, returns its waiters. Drops the waiters of worker `index`, which no
/// longer exist.
fn wake_others<T: Send, W: Wake>(
    mail: &mut PeerMailboxes<WorkerMessage<T>, W>,
    index: usize,
    waiters: impl Iterator<Item = WaiterId>,
) -> Vec<WaiterId> {
    let mut wakes = WakeQueue::default();
    wakes.add(index, mail, waiters);
    mail.flush();
    wakes.take_unsent()
}
