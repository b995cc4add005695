//! Ends of pipes that wait for the process at the other end.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use iolite::service::{FileKey, Refusal};
use millrace_sys::{FileAccess, InodeKind};

use crate::limits::PAIRS_PER_CLIENT_MAX;

/// The ends of pipes that were passed, until the other end is.
#[derive(Debug, Default)]
pub(crate) struct Pairs(Mutex<HashMap<PipeEnd, WaitingEnd>>);

/// An end of a pipe. Only processes of one user get to each other: the kernel numbers pipes by a
/// counter of 32 bits, so another pipe can have the number of one that was closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct PipeEnd {
    pipe: FileKey,
    writes: bool,
    user: u32,
}

#[derive(Debug)]
struct WaitingEnd {
    /// The end of the channel's socket for the process at the other end of the pipe.
    socket: OwnedFd,
    /// The number of the connection that has passed this end.
    client: u64,
}

impl Pairs {
    /// Returns an end of a channel's socket for the process that has passed `file`. Its other end
    /// is for the process at the other end of the pipe.
    ///
    /// # Errors
    /// The reason why the pipe stays an ordinary one.
    pub(crate) fn add(
        &self,
        user: u32,
        client: u64,
        file: BorrowedFd<'_>,
    ) -> Result<OwnedFd, Refusal> {
        let FileAccess { reads, writes, .. } =
            millrace_sys::file_access(file).map_err(Refusal::Kernel)?;
        let status = millrace_sys::inode_status(file).map_err(Refusal::Kernel)?;
        if status.kind != InodeKind::Pipe || reads == writes {
            return Err(Refusal::NotPipe);
        }
        let pipe = FileKey { device: status.device, inode: status.inode };
        let mut waiting = self.waiting();
        if let Some(other) = waiting.remove(&PipeEnd { pipe, writes: !writes, user }) {
            return Ok(other.socket);
        }
        let own = waiting.values().filter(|end| end.client == client).count();
        let end = PipeEnd { pipe, writes, user };
        if waiting.contains_key(&end) || own >= PAIRS_PER_CLIENT_MAX {
            return Err(Refusal::Taken);
        }
        let (here, socket) = millrace_sys::packet_pair().map_err(Refusal::Kernel)?;
        waiting.insert(end, WaitingEnd { socket, client });
        Ok(here)
    }

    /// Forgets the ends of a client that has left.
    pub(crate) fn leave(&self, client: u64) {
        let mut waiting = self.waiting();
        let left: Vec<_> = waiting.extract_if(|_, end| end.client == client).collect();
        drop(waiting);
        // To close a socket may take as long as a client has chosen for a socket that it has sent
        // there (socket(7), SO_LINGER).
        drop(left);
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<PipeEnd, WaitingEnd>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}
