//! Wake-ups of objects that wait for the cache, for files, or for their turn on a connection that
//! others share, in this worker or in others. They are queued, and delivered at one point of the
//! turn.

use std::collections::VecDeque;

use millrace_engine::{PeerMailboxes, Token, Wake};
use millrace_store::WaiterId;

use crate::worker::message::WorkerMessage;

/// Wake-ups that are not delivered yet.
#[derive(Debug, Default)]
pub(crate) struct WakeQueue {
    /// Objects of this worker, in the order in which they were woken.
    pub(crate) local: VecDeque<Token>,
    /// Waiters of other workers whose mailbox was full.
    unsent: Vec<WaiterId>,
}

impl WakeQueue {
    /// Queues the wake-ups for this worker, whose index is `index`, and sends the others.
    pub(crate) fn add<D: Send, W: Wake>(
        &mut self,
        index: usize,
        mail: &mut PeerMailboxes<WorkerMessage<D>, W>,
        waiters: impl IntoIterator<Item = WaiterId>,
    ) {
        for waiter in waiters {
            let (worker, token) = (usize::from(waiter.worker), Token::from_bits(waiter.token));
            if worker == index {
                self.local.push_back(token);
            } else if mail.send(worker, WorkerMessage::Wake(token)).is_err() {
                self.unsent.push(waiter);
            }
        }
    }

    /// Takes the wake-ups that found a full mailbox.
    pub(crate) fn take_unsent(&mut self) -> Vec<WaiterId> {
        std::mem::take(&mut self.unsent)
    }

    /// Returns whether a wake-up waits to be delivered or sent.
    pub(crate) fn is_pending(&self) -> bool {
        !self.local.is_empty() || !self.unsent.is_empty()
    }
}
