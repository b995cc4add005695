//! Messages to the workers, through one mailbox for each worker.

use std::os::fd::OwnedFd;

use millrace_engine::{EventWaker, MailboxSender};
use millrace_proxy::WorkerMessage;

/// A message to a worker of this program, with sockets as descriptors.
pub(crate) type SocketMessage = WorkerMessage<OwnedFd>;

/// The mailboxes of all workers.
#[derive(Default)]
pub(crate) struct WorkerMailboxes {
    /// One for each worker; empty after [`WorkerMailboxes::abort_workers`].
    pub(crate) outboxes: Vec<MailboxSender<SocketMessage, EventWaker>>,
}

impl WorkerMailboxes {
    /// Sends a message to every worker in order.
    ///
    /// # Panics
    /// If a mailbox is full. Call [`WorkerMailboxes::has_room`] first.
    pub(crate) fn send_all(&mut self, mut message: impl FnMut() -> SocketMessage) {
        for outbox in &mut self.outboxes {
            assert!(outbox.send(message()).is_ok(), "callers check has_room");
            outbox.flush();
        }
    }

    /// Returns whether each mailbox has room for `count` messages.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.outboxes.iter().all(|outbox| outbox.free_capacity() >= count)
    }

    /// Makes all workers abort. No message can be sent afterwards.
    pub(crate) fn abort_workers(&mut self) {
        self.send_all(|| WorkerMessage::Stop);
        self.outboxes.clear();
    }

    /// Returns whether [`WorkerMailboxes::abort_workers`] was called.
    pub(crate) fn has_aborted(&self) -> bool {
        self.outboxes.is_empty()
    }
}
