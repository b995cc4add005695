//! What is left of a worker that panicked, for one that takes its place.
//!
//! Its tables may say anything, so nothing is done by them: its engine knows every descriptor, and
//! ends them all. What outlives it is what others go on using: its mailboxes, with the letters that
//! it had not read, and its place in what all workers share.

use std::collections::VecDeque;

use millrace_engine::{Engine, Inbox, Mail, Token, Wake};
use millrace_store::Waiter;

use crate::worker::Worker;
use crate::worker::message::Letter;

/// The parts of a worker that outlive it.
pub struct Remains<E: Engine> {
    /// Its engine, with everything open. Its owner breaks it off.
    pub engine: E,
    /// Letters from the supervisor.
    pub inbox: Inbox<Letter<E::Detached>, E::Waker>,
    /// Letters to and from the other workers.
    pub mail: Mail<Letter<E::Detached>, E::Waker>,
    /// Letters that were taken out and not read.
    pub letters: VecDeque<Letter<E::Detached>>,
    /// Client connections that are cut off.
    pub connections: usize,
}

impl<E: Engine> Worker<E> {
    /// Takes a worker apart that panicked in a turn. What others see of it is put right: its
    /// clients are not counted any more, and its gauges stand at nothing.
    pub fn take_apart(mut self) -> Remains<E> {
        let connections = self.conns.len();
        // The panic may have come in the middle of a record.
        let whole = self.records.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.records.truncate(whole);
        self.flush_records();
        self.clients.forget(&self.shared.all_clients);
        for gauge in [
            &self.counters.connections,
            &self.counters.exchanges_open,
            &self.counters.origin_connections,
            &self.counters.pipes,
            &self.counters.held_bytes,
        ] {
            gauge.set(0);
        }
        let late = self.take_late();
        let Self { engine, inbox, mut mail, letters, exchanges, fills, index, shared, .. } = self;
        // Whoever waited in the cache for something of these is an orphan.
        drop((exchanges, fills));
        if let Some(cache) = &shared.cache {
            let orphans = cache.take_orphans().into_iter().chain(late);
            cache.leave_orphans(wake_others(&mut mail, index, orphans));
        }
        Remains { engine, inbox, mail, letters, connections }
    }

    /// Tries once more to wake those whose mailboxes were full, as this worker ends. Who is missed is
    /// an orphan, and looks again by itself in time.
    pub(crate) fn leave_late(&mut self) {
        let late = self.take_late();
        let missed = wake_others(&mut self.mail, self.index, late.into_iter());
        if let Some(cache) = &self.shared.cache {
            cache.leave_orphans(missed);
        }
    }

    fn take_late(&mut self) -> Vec<Waiter> {
        let late = std::mem::take(&mut self.late_wakes).into_iter();
        late.map(|(worker, token)| Waiter { worker, token: token.to_bits() }).collect()
    }

    /// Goes on with the letters of the worker whose place this one takes, before its first turn.
    pub fn take_over(&mut self, letters: VecDeque<Letter<E::Detached>>) {
        self.letters = letters;
        self.counters.worker_restarts.add(1);
        let orphans = self.shared.cache.as_ref().map(|cache| cache.take_orphans());
        self.wake(orphans.into_iter().flatten());
    }
}

/// Wakes those of other workers, even if nobody takes this one's place. Gives those whose mailbox
/// is full, for the next worker; nobody of the worker `index` is left.
fn wake_others<T: Send, W: Wake>(
    mail: &mut Mail<Letter<T>, W>,
    index: usize,
    orphans: impl Iterator<Item = Waiter>,
) -> Vec<Waiter> {
    let others = orphans.filter(|waiter| usize::from(waiter.worker) != index);
    let late = others.filter(|waiter| {
        let letter = Letter::Wake(Token::from_bits(waiter.token));
        mail.send(usize::from(waiter.worker), letter).is_err()
    });
    let late = late.collect();
    mail.flush();
    late
}
