//! The way to the workers: letters, by a mailbox each.

use std::os::fd::OwnedFd;

use millrace_engine::{EventWaker, MailboxSender};
use millrace_proxy::WorkerMessage;

/// A letter of this program's.
pub(crate) type Post = WorkerMessage<OwnedFd>;

/// The way to the workers.
#[derive(Default)]
pub(crate) struct WorkerMailboxes {
    /// One a worker; empty once nothing more will be said.
    pub(crate) outboxes: Vec<MailboxSender<Post, EventWaker>>,
}

impl WorkerMailboxes {
    /// Sends every worker a letter, in their order.
    ///
    /// # Panics
    /// When a mailbox is full: [`Posts::have_room`] is asked before.
    pub(crate) fn send_all(&mut self, mut message: impl FnMut() -> Post) {
        for outbox in &mut self.outboxes {
            assert!(outbox.send(message()).is_ok(), "a mailbox holds all that is ever sent to it");
            outbox.flush();
        }
    }

    /// Whether every worker can be sent so many letters.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.outboxes.iter().all(|outbox| outbox.free_capacity() >= count)
    }

    /// Tells every worker to break off. Nothing can be said after it.
    pub(crate) fn stop(&mut self) {
        self.send_all(|| WorkerMessage::Stop);
        self.outboxes.clear();
    }

    /// Whether the workers were told to break off.
    pub(crate) fn is_stopped(&self) -> bool {
        self.outboxes.is_empty()
    }
}
