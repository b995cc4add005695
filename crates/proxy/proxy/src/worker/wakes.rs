//! Wake-ups of what waits for something in the cache, in this worker or in others. They are queued,
//! and delivered at one point of the turn.

use std::collections::VecDeque;

use millrace_engine::{Mail, Token, Wake};
use millrace_store::Waiter;

use crate::worker::message::Letter;

/// Wake-ups that are not delivered yet.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    /// Objects of this worker, in the order in which they were woken.
    pub(crate) here: VecDeque<Token>,
    /// Objects of other workers, whose mailboxes had no room.
    late: Vec<Waiter>,
}

impl Wakes {
    /// Queues wake-ups for this worker, whose number is `index`, and sends the others.
    pub(crate) fn add<D: Send, W: Wake>(
        &mut self,
        index: usize,
        mail: &mut Mail<Letter<D>, W>,
        waiters: impl IntoIterator<Item = Waiter>,
    ) {
        for waiter in waiters {
            let (worker, token) = (usize::from(waiter.worker), Token::from_bits(waiter.token));
            if worker == index {
                self.here.push_back(token);
            } else if mail.send(worker, Letter::Wake(token)).is_err() {
                self.late.push(waiter);
            }
        }
    }

    /// Takes those that found no room in a mailbox.
    pub(crate) fn take_late(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.late)
    }

    /// Whether there is something to deliver.
    pub(crate) fn is_pending(&self) -> bool {
        !self.here.is_empty() || !self.late.is_empty()
    }
}
