//! Requests to the verifier, and the order in which it serves them. Clients take turns, one request
//! each, so that a client that guesses passwords delays another one by at most one comparison.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use millrace_config::PasswordHash;

use crate::overload::per_client::ClientPrefix;

/// A component outside of the workers that compares passwords with slow hashes.
pub trait Verifier: Send {
    /// Submits a request. The result will arrive in the mailbox of the worker that submitted it.
    /// Blocks only for as long as it takes to put the request into a queue.
    ///
    /// # Errors
    /// The queue is full. There will be no result.
    fn submit(&mut self, request: VerifyRequest) -> Result<(), VerifierFull>;
}

/// The error of a request for which the verifier's queue has no space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifierFull;

/// A request to compare a password with a hash.
pub struct VerifyRequest {
    pub(super) digest: [u8; 32],
    pub(super) client: Option<ClientPrefix>,
    pub(super) hash: Arc<PasswordHash>,
    pub(super) password: Vec<u8>,
    /// Whether the user does not exist. The comparison runs against a decoy hash then, for the sake
    /// of its time, and its outcome is always a mismatch.
    pub(super) is_decoy: bool,
}

impl VerifyRequest {
    /// Compares the password with the hash. This takes a tenth of a second or longer.
    pub fn verify(&self) -> VerifyResult {
        let is_match = self.hash.is_of(&self.password) && !self.is_decoy;
        self.result(if is_match { VerifyOutcome::Match } else { VerifyOutcome::Mismatch })
    }

    /// Returns a result of this request with the given outcome.
    pub fn result(&self, outcome: VerifyOutcome) -> VerifyResult {
        VerifyResult { digest: self.digest, outcome }
    }

    /// Returns the client that sent the password; `None` for a client on a Unix socket.
    pub fn client(&self) -> Option<ClientPrefix> {
        self.client
    }
}

/// Does not show the password.
impl fmt::Debug for VerifyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyRequest(client {:?}, {:?})", self.client, self.hash)
    }
}

/// The result of a request.
#[derive(Debug)]
pub struct VerifyResult {
    pub(super) digest: [u8; 32],
    pub(super) outcome: VerifyOutcome,
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerifyOutcome {
    /// The password is right.
    Match,
    /// The password is wrong.
    Mismatch,
    /// The request was dropped in favour of a client with fewer requests.
    Dropped,
}

/// A bounded queue that serves clients in turn.
///
/// Each client has a queue of its own, of at most [`FairQueue::PER_CLIENT_MAX`] items. When all
/// queues together hold [`FairQueue::MAX`] items, a new item displaces the latest item of the
/// longest queue. It is refused instead if the queue of its client, with this item, would be at
/// least as long as the longest one is now.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// The queues that are not empty, with at most [`FairQueue::MAX`] items together:
    /// `queues.len() == turns.len()`.
    queues: HashMap<Option<ClientPrefix>, VecDeque<T>>,
    /// The clients with a queue, in the order of their turns.
    turns: VecDeque<Option<ClientPrefix>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    /// The most items of all clients. Above it, the longest queue loses an item.
    pub const MAX: usize = 256;
    /// The most items of one client. Above it, the next item is refused.
    pub const PER_CLIENT_MAX: usize = 16;

    /// Appends an item to the queue of its client. Returns the item that it displaced, if any.
    ///
    /// # Errors
    /// The item itself, if its client has too many items already.
    pub fn push(&mut self, client: Option<ClientPrefix>, item: T) -> Result<Option<T>, T> {
        let own_length = self.queues.get(&client).map_or(0, VecDeque::len);
        if own_length == Self::PER_CLIENT_MAX {
            return Err(item);
        }
        let mut displaced = None;
        if self.queues.values().map(VecDeque::len).sum::<usize>() == Self::MAX {
            let length = |client| self.queues[client].len();
            // Among queues of equal length, `max_by_key` returns the one whose turn comes last. Its
            // client has waited least.
            let longest = *self
                .turns
                .iter()
                .max_by_key(|client| length(client))
                .expect("a full queue has clients");
            if self.queues[&longest].len() <= own_length + 1 {
                return Err(item);
            }
            let queue = self.queues.get_mut(&longest).expect("it was found just now");
            displaced = queue.pop_back();
        }
        let queue = self.queues.entry(client).or_default();
        if queue.is_empty() {
            self.turns.push_back(client);
        }
        queue.push_back(item);
        Ok(displaced)
    }

    /// Takes the oldest item of the client that is next in turn.
    pub fn pop(&mut self) -> Option<T> {
        let client = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&client).expect("a client with a turn has a queue");
        let item = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        item
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(queue: &FairQueue<u32>) -> usize {
        queue.queues.values().map(VecDeque::len).sum()
    }

    fn client(number: u32) -> Option<ClientPrefix> {
        Some(ClientPrefix::of((0x0a00_0000 + number).to_be_bytes().into(), 64))
    }

    #[test]
    fn clients_take_turns_and_each_has_a_bound() {
        let mut queue = FairQueue::default();
        let guesses = (0..100).filter(|&guess| queue.push(client(1), guess).is_ok()).count();
        assert_eq!(guesses, FairQueue::<i32>::PER_CLIENT_MAX);
        assert_eq!(queue.push(client(2), 1000), Ok(None));
        assert_eq!(queue.push(None, 2000), Ok(None));
        assert_eq!([(); 4].map(|()| queue.pop()), [Some(0), Some(1000), Some(2000), Some(1)]);
        while queue.pop().is_some() {}
        assert!(queue.is_empty() && queue.queues.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn a_full_queue_displaces_items_of_clients_with_many() {
        let mut queue = FairQueue::default();
        let clients = (FairQueue::<u32>::MAX / FairQueue::<u32>::PER_CLIENT_MAX) as u32;
        for guess in 0..FairQueue::<u32>::MAX as u32 {
            assert_eq!(queue.push(client(guess % clients), guess), Ok(None));
        }
        let newcomer = queue.push(client(1000), 1).unwrap();
        assert!(newcomer.is_some_and(|guess| guess >= 240), "the latest item of a longest queue");
        assert_eq!(length(&queue), FairQueue::<u32>::MAX);
        for count in 0..2000 {
            let _ = queue.push(client(2000 + count), 1);
        }
        let longest = queue.queues.values().map(VecDeque::len).max();
        assert_eq!(
            (length(&queue), longest),
            (FairQueue::<u32>::MAX, Some(1)),
            "one item per client"
        );
    }
}
