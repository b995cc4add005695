//! Bounded mailboxes between workers, one for each ordered pair of workers.
//!
//! A sender adds messages during its turn, and wakes the receiver once, with `flush`, at the end of
//! the turn. The receiver takes out all messages at one point of its own turn. A full mailbox
//! returns the message to the sender, which keeps it and tries again in its next turn. That turn
//! must not wait for long, since the sender is not notified when the mailbox has room again.

use std::collections::{VecDeque, vec_deque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::Wake;

/// The sending end of a mailbox.
#[derive(Debug)]
pub struct MailboxSender<T, W> {
    shared: Arc<Mailbox<T, W>>,
    /// Whether a message was added since the last flush.
    unflushed: bool,
}

/// The receiving end of a mailbox.
#[derive(Debug)]
pub struct MailboxReceiver<T, W> {
    shared: Arc<Mailbox<T, W>>,
    /// The messages taken out of the mailbox. Each drain swaps this queue with the mailbox's.
    taken: VecDeque<T>,
}

#[derive(Debug)]
struct Mailbox<T, W> {
    /// `messages.len() <= capacity`. The lock is held for one push or one swap.
    messages: Mutex<VecDeque<T>>,
    capacity: usize,
    /// The receiver's waker, once it is set.
    wake: OnceLock<W>,
}

/// Creates a mailbox for up to `capacity` messages. While the receiver handles the messages that it
/// took out, `capacity` more can be added.
pub fn mailbox<T: Send, W: Wake>(capacity: usize) -> (MailboxSender<T, W>, MailboxReceiver<T, W>) {
    let messages = Mutex::new(VecDeque::with_capacity(capacity));
    let shared = Arc::new(Mailbox { messages, capacity, wake: OnceLock::new() });
    let outbox = MailboxSender { shared: shared.clone(), unflushed: false };
    (outbox, MailboxReceiver { shared, taken: VecDeque::with_capacity(capacity) })
}

impl<T: Send, W: Wake> MailboxSender<T, W> {
    /// Adds a message. The receiver sees it after [`MailboxSender::flush`] at the latest.
    ///
    /// # Errors
    /// Returns the message if the mailbox is full.
    pub fn send(&mut self, message: T) -> Result<(), T> {
        let mut messages = self.shared.lock();
        if messages.len() == self.shared.capacity {
            return Err(message);
        }
        messages.push_back(message);
        self.unflushed = true;
        Ok(())
    }

    /// Returns how many more messages fit in now.
    pub fn free_capacity(&self) -> usize {
        self.shared.capacity - self.shared.lock().len()
    }

    /// Wakes the receiver if a message was added since the last flush.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed)
            && let Some(wake) = self.shared.wake.get()
        {
            wake.wake();
        }
    }
}

impl<T: Send, W: Wake> MailboxReceiver<T, W> {
    /// Sets the waker of this receiver. Call it before the first [`MailboxReceiver::drain`]: until
    /// the waker is set, a flush wakes no thread, and a message that is sent after that drain could
    /// stay unnoticed. Only the first call has an effect: a worker that replaces a panicked one
    /// calls it again, with the same waker.
    pub fn set_waker(&self, wake: W) {
        let _ = self.shared.wake.set(wake);
    }

    /// Takes out all messages, in the order in which they were added.
    pub fn drain(&mut self) -> vec_deque::Drain<'_, T> {
        debug_assert!(self.taken.is_empty());
        std::mem::swap(&mut self.taken, &mut *self.shared.lock());
        self.taken.drain(..)
    }
}

impl<T, W> Mailbox<T, W> {
    /// Locks the messages. A panic during a push or a swap leaves them whole, so a poisoned lock is
    /// usable.
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mailboxes between one worker and all others.
#[derive(Debug)]
pub struct PeerMailboxes<T, W> {
    /// By the receiver's number; `None` for the worker itself.
    outboxes: Vec<Option<MailboxSender<T, W>>>,
    /// By the sender's number; `None` for the worker itself.
    inboxes: Vec<Option<MailboxReceiver<T, W>>>,
}

/// Creates mailboxes of `capacity` messages between all pairs of `workers` workers. The result is
/// indexed by worker.
pub fn mailbox_mesh<T: Send, W: Wake>(workers: usize, capacity: usize) -> Vec<PeerMailboxes<T, W>> {
    let empty = |_| PeerMailboxes { outboxes: Vec::new(), inboxes: Vec::new() };
    let mut by_worker: Vec<PeerMailboxes<T, W>> = (0..workers).map(empty).collect();
    for from in 0..workers {
        for into in 0..workers {
            let (outbox, inbox) = (from != into).then(|| mailbox(capacity)).unzip();
            by_worker[from].outboxes.push(outbox);
            by_worker[into].inboxes.push(inbox);
        }
    }
    by_worker
}

impl<T: Send, W: Wake> PeerMailboxes<T, W> {
    /// Returns the number of workers, including this one.
    pub fn worker_count(&self) -> usize {
        self.outboxes.len()
    }

    /// Sets the waker of this worker: see [`MailboxReceiver::set_waker`].
    pub fn set_waker(&self, wake: &W) {
        for inbox in self.inboxes.iter().flatten() {
            inbox.set_waker(wake.clone());
        }
    }

    /// Adds a message to the mailbox of worker `into`.
    ///
    /// # Errors
    /// Returns the message if that mailbox is full.
    ///
    /// # Panics
    /// Panics if `into` is this worker, or no worker.
    pub fn send(&mut self, into: usize, message: T) -> Result<(), T> {
        self.outboxes[into].as_mut().expect("a worker sends no messages to itself").send(message)
    }

    /// Wakes each worker that was sent a message since the last flush. Called once a turn.
    pub fn flush(&mut self) {
        for outbox in self.outboxes.iter_mut().flatten() {
            outbox.flush();
        }
    }

    /// Passes every message for this worker to `take`, with the sender's number. The messages of
    /// one sender are in order.
    pub fn drain(&mut self, mut take: impl FnMut(usize, T)) {
        for (from, inbox) in self.inboxes.iter_mut().enumerate() {
            if let Some(inbox) = inbox {
                inbox.drain().for_each(|message| take(from, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Clone, Default)]
    struct CountingWaker(Arc<AtomicUsize>);

    impl Wake for CountingWaker {
        fn wake(&self) {
            // In these tests the same thread reads the counter, so relaxed order suffices.
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_flush_wakes_once_and_a_full_mailbox_returns_the_message() {
        let wake = CountingWaker::default();
        let (mut outbox, mut inbox) = mailbox(2);
        inbox.set_waker(wake.clone());
        assert_eq!([1, 2, 3].map(|message| outbox.send(message)), [Ok(()), Ok(()), Err(3)]);
        outbox.flush();
        outbox.flush();
        assert_eq!(wake.0.load(Ordering::Relaxed), 1);
        assert_eq!(inbox.drain().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(outbox.send(3), Ok(()));
        assert_eq!(inbox.drain().collect::<Vec<_>>(), [3]);
        assert_eq!(inbox.drain().count(), 0);
    }

    #[test]
    fn every_worker_reaches_every_other() {
        let mut by_worker = mailbox_mesh::<(usize, usize), CountingWaker>(3, 4);
        let wakes = [(); 3].map(|()| CountingWaker::default());
        for (mailboxes, wake) in by_worker.iter().zip(&wakes) {
            mailboxes.set_waker(wake);
        }
        for (from, mailboxes) in by_worker.iter_mut().enumerate() {
            for into in (0..3).filter(|&into| into != from) {
                mailboxes.send(into, (from, into)).unwrap();
            }
            mailboxes.flush();
        }
        for (worker, mailboxes) in by_worker.iter_mut().enumerate() {
            let mut got = Vec::new();
            mailboxes.drain(|from, message| got.push((from, message)));
            let others = (0..3).filter(|&other| other != worker);
            assert_eq!(got, others.map(|from| (from, (from, worker))).collect::<Vec<_>>());
            assert_eq!(wakes[worker].0.load(Ordering::Relaxed), 2);
        }
    }
}
