//! Ends of pipes and connections that wait for the process at the other end.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use iolite::service::Refusal;

use crate::limits::PAIRS_PER_CLIENT_MAX;
use crate::streams::StreamEnd;

/// The ends of pipes and connections that were passed, until the other end is.
#[derive(Debug, Default)]
pub(crate) struct Pairs(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    ends: HashMap<StreamEnd, WaitingEnd>,
    /// The ends that were passed, in all.
    passed: u64,
}

#[derive(Debug)]
struct WaitingEnd {
    /// The end of the channel's socket for the process at the other end.
    socket: OwnedFd,
    /// The number of the connection to the daemon that has passed this end.
    client: u64,
    /// The number of the socket that was passed; 0 for a pipe.
    number: u64,
    /// The ends that were passed before, in all.
    passed_before: u64,
}

impl Pairs {
    /// Returns an end of a channel's socket for the process that has passed `file`, which it reads
    /// or writes. The other end of that socket is for the process at the other end of the file.
    ///
    /// # Errors
    /// The reason why the file carries bytes only.
    pub(crate) fn add(
        &self,
        user: u32,
        client: u64,
        file: BorrowedFd<'_>,
        writes: bool,
    ) -> Result<OwnedFd, Refusal> {
        let (end, number) = StreamEnd::of(file, writes, user)?;
        let mut waiting = self.waiting();
        if let Some(other) = waiting.ends.remove(&end.other()) {
            return Ok(other.socket);
        }
        // Another socket with the same addresses was closed.
        if waiting.ends.get(&end).is_some_and(|other| other.number == number) {
            return Err(Refusal::Taken);
        }
        let (here, socket) = millrace_sys::packet_pair().map_err(Refusal::Kernel)?;
        let oldest = waiting.take_oldest(client);
        let passed_before = waiting.passed;
        waiting.passed += 1;
        let same = waiting.ends.insert(end, WaitingEnd { socket, client, number, passed_before });
        drop(waiting);
        // As in `leave`.
        drop((oldest, same));
        Ok(here)
    }

    /// Forgets the ends of a client that has left.
    pub(crate) fn leave(&self, client: u64) {
        let mut waiting = self.waiting();
        let left: Vec<_> = waiting.ends.extract_if(|_, end| end.client == client).collect();
        drop(waiting);
        // To close a socket may take as long as a client has chosen for a socket that it has sent
        // there (socket(7), SO_LINGER).
        drop(left);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Waiting {
    /// Takes the end that has waited for longest, if a client has as many as it may. Most likely an
    /// ordinary program is at its other end, so it carries bytes from then on.
    fn take_oldest(&mut self, client: u64) -> Option<WaitingEnd> {
        let own = || self.ends.iter().filter(|(_, end)| end.client == client);
        if own().count() < PAIRS_PER_CLIENT_MAX {
            return None;
        }
        let oldest = own().min_by_key(|(_, end)| end.passed_before).map(|(name, _)| *name);
        oldest.and_then(|name| self.ends.remove(&name))
    }
}
