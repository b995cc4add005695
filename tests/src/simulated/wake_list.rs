//! Wake-ups from threads that are not simulated: collected, and delivered to the mailboxes of the
//! workers.

use std::sync::{Arc, Mutex, PoisonError};

use millrace_engine::Token;
use millrace_proxy::WorkerMessage;
use millrace_store::{WaiterId, Waker};

use super::reload::WorkerMailboxes;

/// Waiters that may continue.
#[derive(Debug, Default)]
struct WakeList(Mutex<Vec<WaiterId>>);

impl WakeList {
    fn take(&self) -> Vec<WaiterId> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Waker for WakeList {
    fn wake(&self, waiter: WaiterId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(waiter);
    }
}

/// Wake-ups that are delivered later.
#[derive(Default)]
pub(super) struct PendingWakes {
    list: Arc<WakeList>,
    /// Waiters that could not be woken because a mailbox was full.
    late: Vec<WaiterId>,
}

impl PendingWakes {
    /// Returns the waker whose calls are collected.
    pub(super) fn waker(&self) -> Arc<dyn Waker> {
        self.list.clone()
    }

    /// Sends the wake-ups. Returns false if some are left because a mailbox is full.
    pub(super) fn deliver(&mut self, mailboxes: &WorkerMailboxes) -> bool {
        self.late.append(&mut self.list.take());
        let mut mailboxes = mailboxes.borrow_mut();
        self.late.retain(|waiter| {
            let Some(mailbox) = mailboxes.get_mut(usize::from(waiter.worker)) else { return false };
            let is_full =
                mailbox.send(WorkerMessage::Wake(Token::from_bits(waiter.token))).is_err();
            mailbox.flush();
            is_full
        });
        self.late.is_empty()
    }

    /// Drops the wake-ups of a process that has ended.
    pub(super) fn discard(&mut self) {
        self.late.clear();
        self.list.take();
    }
}
