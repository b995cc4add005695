//! What an engine knows of one descriptor: whose it is, what the kernel last said about it, and
//! the operation outstanding in each direction.

use std::os::fd::{AsFd, OwnedFd};

use millrace_sys::Interest;

use crate::{Error, HeldBytes, SharedBytes, Token, Watch};

/// One descriptor, at the index that its [`Fd`](crate::Fd) holds. The index is not the kernel's
/// number: numbers are shared by all workers, so a table by number would be as long for each of
/// them as for all together, and a number says nothing about events of its last owner.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) fd: OwnedFd,
    pub(super) kind: DescriptorKind,
    /// A receive may find something. Cleared by a call that shows that there is nothing more, set
    /// by the next edge.
    pub(super) readable: bool,
    /// A send may find room; likewise.
    pub(super) writable: bool,
    /// The end of the stream, an error or urgent data was announced. That is not announced again,
    /// so a receive that got less than it asked for does not show that nothing is left.
    pub(super) must_drain: bool,
    /// Whether each direction has an entry in the queue of what is ready.
    pub(super) receive_queued: bool,
    pub(super) send_queued: bool,
    /// Whether the entry of `receive_queued` is among those that wait for the budget.
    pub(super) parked: bool,
    pub(super) receiving: ReceiveOperation,
    pub(super) sending: SendOperation,
}

const _: () = assert!(size_of::<Descriptor>() <= 64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DescriptorKind {
    /// A stream socket: TCP or Unix.
    Stream,
    /// A UDP socket. It never ends, and one receive says nothing about the next.
    Datagram,
    Listener,
    /// An end of a pipe: known to this table only, and not watched.
    Pipe,
}

/// The operation outstanding in the receiving direction.
#[derive(Debug)]
pub(super) enum ReceiveOperation {
    Idle,
    Receive {
        max: u32,
        token: Token,
    },
    Accept {
        token: Token,
        /// The turn in which it last gave a connection, and how many it gave in it.
        turn: u32,
        count: u32,
    },
    /// Into the pipe at this index, whose sending side is [`SendOperation::PipeTarget`].
    Splice {
        pipe: u32,
        max: u32,
        token: Token,
    },
    /// Takes nothing.
    PollReadable {
        token: Token,
    },
    /// This is a pipe that the socket at this index is emptying.
    PipeSource {
        socket: u32,
    },
}

/// The operation outstanding in the sending direction.
#[derive(Debug)]
pub(super) enum SendOperation {
    Idle,
    Connect {
        token: Token,
    },
    /// All of it is copied, to be sent when the turn ends.
    Batched {
        token: Token,
        length: u32,
    },
    /// Boxed because a send rarely has a rest.
    Send {
        token: Token,
        rest: Box<HeldBytes>,
    },
    /// By reference; boxed likewise.
    SendShared {
        token: Token,
        rest: Box<UnsentShared>,
    },
    /// Out of the pipe at this index, whose receiving side is [`ReceiveOperation::PipeSource`].
    Splice {
        pipe: u32,
        max: u32,
        token: Token,
    },
    /// The same, once what goes before it is sent.
    SendThenSplice {
        pipe: u32,
        token: Token,
        before: Box<HeldBeforeSplice>,
    },
    /// This is a pipe that the socket at this index is filling.
    PipeTarget {
        socket: u32,
    },
    /// Ended already, not given yet.
    Connected {
        token: Token,
        result: Result<(), Error>,
    },
    /// Ended already, not given yet.
    Sent {
        token: Token,
        result: Result<(), Error>,
    },
    /// Ended already, not given yet; the pipe is free again.
    Spliced {
        token: Token,
        result: Result<u32, Error>,
    },
}

/// What a splice waits for, and how much it then moves at most.
#[derive(Debug)]
pub(super) struct HeldBeforeSplice {
    pub(super) rest: HeldBytes,
    pub(super) max: u32,
}

impl Descriptor {
    pub(super) fn new(fd: OwnedFd, role: DescriptorKind) -> Self {
        Self {
            fd,
            kind: role,
            readable: false,
            writable: false,
            must_drain: false,
            receive_queued: false,
            send_queued: false,
            parked: false,
            receiving: ReceiveOperation::Idle,
            sending: SendOperation::Idle,
        }
    }

    /// # Panics
    /// When an operation is outstanding in the receiving direction.
    pub(super) fn begin_receiving(&mut self, operation: ReceiveOperation) {
        let idle = matches!(self.receiving, ReceiveOperation::Idle);
        assert!(idle, "one receiving operation at a time: {:?}", self.receiving);
        self.receiving = operation;
    }

    /// # Panics
    /// When an operation is outstanding in the sending direction.
    pub(super) fn begin_sending(&mut self, operation: SendOperation) {
        let idle = matches!(self.sending, SendOperation::Idle);
        assert!(idle, "one sending operation at a time: {:?}", self.sending);
        self.sending = operation;
    }

    /// Whether a send has failed whose completion is not given yet.
    pub(super) fn has_failed_send(&self) -> bool {
        matches!(
            self.sending,
            SendOperation::Sent { result: Err(_), .. }
                | SendOperation::Spliced { result: Err(_), .. }
        )
    }

    /// Whether an edge of readability is what the receiving direction waits for.
    pub(super) fn is_waiting_to_receive(&self) -> bool {
        !matches!(self.receiving, ReceiveOperation::Idle | ReceiveOperation::PipeSource { .. })
    }

    /// Whether an edge of room to write is what the sending direction waits for.
    pub(super) fn is_waiting_to_send(&self) -> bool {
        matches!(
            self.sending,
            SendOperation::Connect { .. }
                | SendOperation::Send { .. }
                | SendOperation::SendShared { .. }
                | SendOperation::Splice { .. }
                | SendOperation::SendThenSplice { .. }
        )
    }

    /// A send has found no room.
    pub(super) fn mark_unwritable(&mut self, watch: &mut impl Watch) {
        self.writable = false;
        watch.notify_unwritable(self.fd.as_fd());
    }

    /// What is waited for here; `None`: nothing, or it is queued to be tried already.
    pub(super) fn interest(&self, data: u64) -> Option<Interest<'_>> {
        let receives = self.is_waiting_to_receive() && !self.receive_queued;
        let sends = self.is_waiting_to_send() && !self.send_queued;
        (receives || sends).then(|| Interest {
            fd: self.fd.as_fd(),
            data,
            readable: receives,
            writable: sends,
        })
    }
}

/// What a send of shared bytes has left.
#[derive(Debug)]
pub(super) struct UnsentShared {
    /// Goes first.
    pub(super) before: HeldBytes,
    pub(super) shared: Box<dyn SharedBytes>,
    pub(super) sent: usize,
}

impl UnsentShared {
    pub(super) fn len(&self) -> usize {
        self.before.len() + self.shared.bytes().len() - self.sent
    }
}
