//! Bounded mailboxes between workers, one for each ordered pair.
//!
//! A sender puts messages in while it runs its turn and wakes the receiver once, by `flush`, when
//! it is done. The receiver takes everything at one point of its own turn. A full mailbox gives
//! the message back: its sender keeps it and tries again next turn, which must not wait for long,
//! since nothing tells the sender that there is room again.

use std::collections::{VecDeque, vec_deque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::Wake;

/// The sending end of a mailbox.
#[derive(Debug)]
pub struct MailboxSender<T, W> {
    shared: Arc<Mailbox<T, W>>,
    /// Something was put in since the receiver was last woken.
    unflushed: bool,
}

/// The receiving end of a mailbox.
#[derive(Debug)]
pub struct MailboxReceiver<T, W> {
    shared: Arc<Mailbox<T, W>>,
    /// What was taken out of the mailbox, and its memory, which goes back there.
    taken: VecDeque<T>,
}

#[derive(Debug)]
struct Mailbox<T, W> {
    /// `messages.len() <= capacity`. Locked for one push or one swap at a time.
    messages: Mutex<VecDeque<T>>,
    capacity: usize,
    /// The receiver's, once it is there.
    wake: OnceLock<W>,
}

/// A mailbox for up to `capacity` messages. While the receiver works through what it took, as many
/// again may come in.
pub fn mailbox<T: Send, W: Wake>(capacity: usize) -> (MailboxSender<T, W>, MailboxReceiver<T, W>) {
    let messages = Mutex::new(VecDeque::with_capacity(capacity));
    let shared = Arc::new(Mailbox { messages, capacity, wake: OnceLock::new() });
    let outbox = MailboxSender { shared: shared.clone(), unflushed: false };
    (outbox, MailboxReceiver { shared, taken: VecDeque::with_capacity(capacity) })
}

impl<T: Send, W: Wake> MailboxSender<T, W> {
    /// Puts a message in, for the receiver to find once it is flushed, or by chance before.
    ///
    /// # Errors
    /// The message itself, when the mailbox is full.
    pub fn send(&mut self, message: T) -> Result<(), T> {
        let mut messages = self.shared.lock();
        if messages.len() == self.shared.capacity {
            return Err(message);
        }
        messages.push_back(message);
        self.unflushed = true;
        Ok(())
    }

    /// How many more messages it takes now.
    pub fn free_capacity(&self) -> usize {
        self.shared.capacity - self.shared.lock().len()
    }

    /// Wakes the receiver if something was put in since the last time.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed)
            && let Some(wake) = self.shared.wake.get()
        {
            wake.wake();
        }
    }
}

impl<T: Send, W: Wake> MailboxReceiver<T, W> {
    /// Says how this receiver is woken: before the first [`MailboxReceiver::drain`], which finds what was
    /// flushed until then. The first word counts: whoever takes a receiver's place goes on with its
    /// waker.
    pub fn set_waker(&self, wake: W) {
        let _ = self.shared.wake.set(wake);
    }

    /// Takes everything out, in the order in which it was put in.
    pub fn drain(&mut self) -> vec_deque::Drain<'_, T> {
        debug_assert!(self.taken.is_empty());
        std::mem::swap(&mut self.taken, &mut *self.shared.lock());
        self.taken.drain(..)
    }
}

impl<T, W> Mailbox<T, W> {
    /// A push or a swap is whole or was not begun, so a panic elsewhere spoils nothing.
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's mailboxes with all others.
#[derive(Debug)]
pub struct PeerMailboxes<T, W> {
    /// By the receiver's number; `None` for the worker itself.
    outboxes: Vec<Option<MailboxSender<T, W>>>,
    /// By the sender's number; likewise.
    inboxes: Vec<Option<MailboxReceiver<T, W>>>,
}

/// Mailboxes of `capacity` messages between each of `workers` and each other, by worker.
pub fn mailbox_mesh<T: Send, W: Wake>(workers: usize, capacity: usize) -> Vec<PeerMailboxes<T, W>> {
    let empty = |_| PeerMailboxes { outboxes: Vec::new(), inboxes: Vec::new() };
    let mut mails: Vec<PeerMailboxes<T, W>> = (0..workers).map(empty).collect();
    for from in 0..workers {
        for into in 0..workers {
            let (outbox, inbox) = (from != into).then(|| mailbox(capacity)).unzip();
            mails[from].outboxes.push(outbox);
            mails[into].inboxes.push(inbox);
        }
    }
    mails
}

impl<T: Send, W: Wake> PeerMailboxes<T, W> {
    /// Workers in the mesh, this one included.
    pub fn worker_count(&self) -> usize {
        self.outboxes.len()
    }

    /// Says how this worker is woken: see [`MailboxReceiver::set_waker`].
    pub fn set_wake(&self, wake: &W) {
        for inbox in self.inboxes.iter().flatten() {
            inbox.set_waker(wake.clone());
        }
    }

    /// Puts a message into the mailbox of worker `into`.
    ///
    /// # Errors
    /// The message itself, when that mailbox is full.
    ///
    /// # Panics
    /// When `into` is this worker or none.
    pub fn send(&mut self, into: usize, message: T) -> Result<(), T> {
        self.outboxes[into].as_mut().expect("a worker sends itself nothing").send(message)
    }

    /// Wakes each worker that something was sent to since the last time. Once a turn.
    pub fn flush(&mut self) {
        for outbox in self.outboxes.iter_mut().flatten() {
            outbox.flush();
        }
    }

    /// Gives everything that was sent to this worker to `take`, with the sender's number: in order
    /// for each sender.
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
            // Read by the same thread in these tests: no pair is needed.
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_batch_wakes_once_and_a_full_mailbox_gives_back() {
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
        let mut mails = mailbox_mesh::<(usize, usize), CountingWaker>(3, 4);
        let wakes = [(); 3].map(|()| CountingWaker::default());
        for (mail, wake) in mails.iter().zip(&wakes) {
            mail.set_wake(wake);
        }
        for (from, mail) in mails.iter_mut().enumerate() {
            for into in (0..3).filter(|&into| into != from) {
                mail.send(into, (from, into)).unwrap();
            }
            mail.flush();
        }
        for (worker, mail) in mails.iter_mut().enumerate() {
            let mut got = Vec::new();
            mail.drain(|from, message| got.push((from, message)));
            let others = (0..3).filter(|&other| other != worker);
            assert_eq!(got, others.map(|from| (from, (from, worker))).collect::<Vec<_>>());
            assert_eq!(wakes[worker].0.load(Ordering::Relaxed), 2);
        }
    }
}
