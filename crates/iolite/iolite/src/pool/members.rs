//! The members of a pool, as its owner sees them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use millrace_sys::{Errno, PacketEvents};

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
    /// Returns whether the process has ended. Before it has named itself, this is not known.
    pub(crate) fn has_ended(&self) -> bool {
        let process = self.process.get();
        process.is_some_and(|process| millrace_sys::has_ended(process.as_fd()).unwrap_or(false))
    }

    /// Waits for an event of the socket, and returns whether the peer has gone.
    pub(crate) fn wait(&self, events: PacketEvents, wait_ms: u32) -> millrace_sys::Result<bool> {
        let process = self.process.get().map(AsFd::as_fd);
        millrace_sys::wait_for_packet(self.socket.as_fd(), events, process, wait_ms)
    }

    /// Sends a frame, and waits for room, but no longer than ten times `wait_ms`.
    pub(crate) fn send_when_ready(&self, frame: Frame, wait_ms: u32) -> millrace_sys::Result<()> {
        for _ in 0..10 {
            match millrace_sys::send_packet(self.socket.as_fd(), &[&frame.to_bytes()], &[]) {
                Err(Errno::AGAIN) => {}
                sent => return sent,
            }
            if self.wait(PacketEvents::Writable, wait_ms)? {
                return Err(Errno::PIPE);
            }
        }
        Err(Errno::AGAIN)
    }

    /// Sends a frame without waiting, and returns whether it was sent.
    pub(crate) fn send(&self, frame: Frame, files: &[BorrowedFd<'_>]) -> bool {
        millrace_sys::send_packet(self.socket.as_fd(), &[&frame.to_bytes()], files).is_ok()
    }
}

/// A member of a pool.
///
/// ```text
///   Invited ──> Joined ──> Excluded ──> Ended
///                  └──────────────────────┘
/// ```
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) peer: Arc<Peer>,
    pub(crate) membership: Arc<Membership>,
    /// Set when it has joined.
    pub(crate) ledger: Option<PeerLedger>,
    /// The newest block that was passed to it.
    pub(crate) newest_version: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberState {
    Invited = 0,
    Joined = 1,
    /// It keeps the blocks that it has, and gets copies.
    Excluded = 2,
    /// Its process has ended, and holds nothing.
    Ended = 3,
}

/// The state of a member, which its channel reads without the lock of the pool.
#[derive(Debug)]
pub(crate) struct Membership(AtomicU8);

impl Membership {
    /// Relaxed: a channel that sees an older state passes references to memory that is retired
    /// later, as that of all references to this member.
    pub(crate) fn state(&self) -> MemberState {
        let state = self.0.load(Ordering::Relaxed);
        let all = [MemberState::Invited, MemberState::Joined, MemberState::Excluded];
        all.into_iter().find(|of| *of as u8 == state).unwrap_or(MemberState::Ended)
    }
}

impl Member {
    pub(crate) fn new(peer: Arc<Peer>) -> Self {
        let membership = Arc::new(Membership(AtomicU8::new(MemberState::Invited as u8)));
        Self { peer, membership, ledger: None, newest_version: 0 }
    }

    pub(crate) fn state(&self) -> MemberState {
        self.membership.state()
    }

    pub(crate) fn join(&self) {
        self.set_state(MemberState::Joined);
    }

    /// Lets its ledger count no more. It keeps the blocks that it has.
    pub(crate) fn exclude(&self) {
        self.set_state(MemberState::Excluded);
    }

    /// Finds out whether its process has ended.
    pub(crate) fn check_end(&self) {
        let state = self.state();
        if (state == MemberState::Joined || state == MemberState::Excluded) && self.peer.has_ended()
        {
            self.set_state(MemberState::Ended);
        }
    }

    fn set_state(&self, state: MemberState) {
        self.membership.0.store(state as u8, Ordering::Relaxed);
    }

    /// Returns the ledger, if it counts.
    pub(crate) fn joined_ledger(&self) -> Option<&PeerLedger> {
        self.ledger.as_ref().filter(|_| self.state() == MemberState::Joined)
    }

    /// Returns whether the memory of a block must not be written to again because of this member.
    pub(crate) fn taints(&self, slot: usize, version: u32) -> bool {
        match self.state() {
            MemberState::Invited => false,
            // It reads on, and its ledger does not count.
            MemberState::Excluded => version <= self.newest_version,
            // Bytes that it has sent may still be in socket queues.
            MemberState::Joined | MemberState::Ended => self
                .ledger
                .as_ref()
                .is_some_and(|of| of.version(slot) == u64::from(version) && of.was_sent(slot)),
        }
    }
}
