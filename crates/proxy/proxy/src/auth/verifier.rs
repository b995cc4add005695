//! Questions to the verifier, and the order in which they are answered: by turns, one of each
//! client, so that somebody who guesses passwords delays nobody else by more than one comparison.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use millrace_config::PasswordHash;

use crate::overload::per_client::ClientPrefix;

/// Whoever compares passwords with slow hashes, outside of the workers.
pub trait Verifier: Send {
    /// Takes a question, of which a verdict will come to the mailbox of the worker that asked.
    /// Never blocks for longer than it takes to put it into a queue.
    ///
    /// # Errors
    /// There is no room for it; no verdict will come.
    fn submit(&mut self, question: VerifyRequest) -> Result<(), VerifierFull>;
}

/// The verifier has no room for a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifierFull;

/// Whether a password is the right one.
pub struct VerifyRequest {
    pub(super) digest: [u8; 32],
    pub(super) client: Option<ClientPrefix>,
    pub(super) hash: Arc<PasswordHash>,
    pub(super) password: Vec<u8>,
    /// There is no such user: whatever the hash says, the answer is no.
    pub(super) is_decoy: bool,
}

impl VerifyRequest {
    /// The verdict. Takes as long as the hash: a tenth of a second, or longer.
    pub fn verify(&self) -> VerifyResult {
        let is_right = self.hash.is_of(&self.password) && !self.is_decoy;
        self.result(if is_right { VerifyOutcome::Match } else { VerifyOutcome::Mismatch })
    }

    /// The verdict that says `outcome`.
    pub fn result(&self, outcome: VerifyOutcome) -> VerifyResult {
        VerifyResult { digest: self.digest, outcome }
    }

    /// Who asks; `None`: a client on a Unix socket.
    pub fn client(&self) -> Option<ClientPrefix> {
        self.client
    }
}

/// A password is shown to nobody.
impl fmt::Debug for VerifyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Question(of {:?}, {:?})", self.client, self.hash)
    }
}

/// What the verifier says of a question.
#[derive(Debug)]
pub struct VerifyResult {
    pub(super) digest: [u8; 32],
    pub(super) outcome: VerifyOutcome,
}

/// How a question was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerifyOutcome {
    /// It is the password.
    Match,
    /// It is not.
    Mismatch,
    /// It was given up, to make room for a client with fewer questions.
    Dropped,
}

/// A bounded queue that serves clients by turns.
///
/// Each client has a line of its own, of at most [`FairQueue::PER_CLIENT_MAX`]. When all lines
/// together hold [`FairQueue::MAX`], a newcomer takes the place of the latest of the longest line,
/// unless its own would be as long.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// Lines that are not empty, with [`FairQueue::MAX`] items in all at most; `lines.len() ==
    /// turns.len()`.
    queues: HashMap<Option<ClientPrefix>, VecDeque<T>>,
    /// Whose turn it is next.
    turns: VecDeque<Option<ClientPrefix>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    /// Questions that wait in all. Above it, the longest line gives one up.
    pub const MAX: usize = 256;
    /// Questions that wait for one client. Above it, its next is refused.
    pub const PER_CLIENT_MAX: usize = 16;

    /// Puts an item at the end of its client's line. Gives the one that had to make room, if any.
    ///
    /// # Errors
    /// The item, when its client has too many already.
    pub fn push(&mut self, client: Option<ClientPrefix>, item: T) -> Result<Option<T>, T> {
        let mine = self.queues.get(&client).map_or(0, VecDeque::len);
        if mine == Self::PER_CLIENT_MAX {
            return Err(item);
        }
        let mut displaced = None;
        if self.queues.values().map(VecDeque::len).sum::<usize>() == Self::MAX {
            let length = |client| self.queues[client].len();
            // The one whose turn is last among equals has waited least.
            let longest = *self.turns.iter().max_by_key(|client| length(client)).expect("full");
            if self.queues[&longest].len() <= mine + 1 {
                return Err(item);
            }
            let line = self.queues.get_mut(&longest).expect("looked at just now");
            displaced = line.pop_back();
        }
        let line = self.queues.entry(client).or_default();
        if line.is_empty() {
            self.turns.push_back(client);
        }
        line.push_back(item);
        Ok(displaced)
    }

    /// Takes the oldest item of the client whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let client = self.turns.pop_front()?;
        let line = self.queues.get_mut(&client).expect("a client with a turn has a line");
        let item = line.pop_front();
        if line.is_empty() {
            self.queues.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        item
    }

    /// Whether nothing waits.
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
    fn clients_take_turns_and_a_guesser_has_a_bound_of_his_own() {
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
    fn a_full_queue_makes_room_for_those_who_have_little() {
        let mut queue = FairQueue::default();
        let lines = (FairQueue::<u32>::MAX / FairQueue::<u32>::PER_CLIENT_MAX) as u32;
        for guess in 0..FairQueue::<u32>::MAX as u32 {
            assert_eq!(queue.push(client(guess % lines), guess), Ok(None));
        }
        let newcomer = queue.push(client(1000), 1).unwrap();
        assert!(newcomer.is_some_and(|guess| guess >= 240), "the latest of a longest line");
        assert_eq!(length(&queue), FairQueue::<u32>::MAX);
        for count in 0..2000 {
            let _ = queue.push(client(2000 + count), 1);
        }
        let longest = queue.queues.values().map(VecDeque::len).max();
        assert_eq!(
            (length(&queue), longest),
            (FairQueue::<u32>::MAX, Some(1)),
            "one for everybody"
        );
    }
}
