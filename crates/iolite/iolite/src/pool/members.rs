//! The members of a pool, as its owner sees them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_sys::PacketEvents;

use crate::packet::Frame;
use crate::pool::ledger::PeerLedger;

/// The process at the other end of a channel.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) socket: OwnedFd,
    /// Set when the peer has named its process.
    pub(crate) process: std::sync::OnceLock<OwnedFd>,
}

impl Peer {
    /// Returns whether the process has ended. Without a descriptor of it, only the end of the
    /// connection would tell.
    pub(crate) fn has_ended(&self) -> bool {
        let process = self.process.get().map(AsFd::as_fd);
        process.is_some()
            && millrace_sys::wait_for_packet(self.socket.as_fd(), PacketEvents::None, process, 0)
                .unwrap_or(false)
    }

    /// Sends a frame without waiting, and returns whether it was sent.
    pub(crate) fn send(&self, frame: Frame, files: &[BorrowedFd<'_>]) -> bool {
        millrace_sys::send_packet(self.socket.as_fd(), &[&frame.to_bytes()], files).is_ok()
    }
}

/// A member of a pool.
///
/// ```text
///   Invited ──> Joined ──> Excluded      it keeps what it has, and gets copies
///                  └─────> Ended         it holds nothing
/// ```
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) peer: Arc<Peer>,
    pub(crate) state: MemberState,
    /// Set when it has joined.
    pub(crate) ledger: Option<PeerLedger>,
    /// The newest block that was passed to it.
    pub(crate) newest_version: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberState {
    Invited,
    Joined,
    Excluded,
    Ended,
}

impl Member {
    pub(crate) fn new(peer: Arc<Peer>) -> Self {
        Self { peer, state: MemberState::Invited, ledger: None, newest_version: 0 }
    }

    /// Returns the ledger, if what it says counts.
    pub(crate) fn joined_ledger(&self) -> Option<&PeerLedger> {
        self.ledger.as_ref().filter(|_| self.state == MemberState::Joined)
    }

    /// Returns whether the memory of a block must not be written to again because of this member.
    pub(crate) fn taints(&self, slot: usize, version: u64) -> bool {
        match self.state {
            MemberState::Invited => false,
            // It reads on, and its ledger does not count.
            MemberState::Excluded => version <= self.newest_version,
            // Bytes that it has sent may still be in socket queues.
            MemberState::Joined | MemberState::Ended => {
                self.ledger.as_ref().is_some_and(|ledger| ledger.was_sent(slot))
            }
        }
    }
}
