//! The engine's state of one descriptor: its kind, the readiness that the kernel last reported, and
//! the operation outstanding in each direction.

use std::os::fd::{AsFd, OwnedFd};

use millrace_sys::Interest;

use crate::{Error, HeldBytes, HeldSource, Token, Watch};

/// One descriptor, at the index that its [`Fd`](crate::Fd) contains. The index is not the kernel's
/// number, for two reasons. The kernel numbers the descriptors of all workers together, so the
/// table of each worker would need a slot for every descriptor of the process. And a kernel's
/// number does not show whether an event belongs to a previous file with that number.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) fd: OwnedFd,
    pub(super) kind: DescriptorKind,
    /// Whether a receive may find something. Cleared by a call that shows that nothing is left, and
    /// set by the next edge.
    pub(super) readable: bool,
    /// Whether a send may find room. Cleared by a call that finds too little room, and set by the
    /// next edge.
    pub(super) writable: bool,
    /// Whether the end of the stream, an error or urgent data was announced, or may have been. It
    /// is not announced again, so a receive that returned less than requested does not show that
    /// nothing is left.
    pub(super) must_drain: bool,
    /// Whether the receiving direction has an entry in the ready queue or in the batch.
    pub(super) receive_queued: bool,
    /// Whether the sending direction has an entry in the ready queue.
    pub(super) send_queued: bool,
    /// Whether the entry of the receiving direction waits for the budget.
    pub(super) parked: bool,
    pub(super) receiving: ReceiveOperation,
    pub(super) sending: SendOperation,
}

const _: () = assert!(size_of::<Descriptor>() <= 64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DescriptorKind {
    /// A stream socket over TCP or Unix.
    Stream,
    /// A UDP socket. It has no end of the stream, and a receive that returned less than requested
    /// does not show that no datagram is left.
    Datagram,
    Listener,
    /// A socket from which its owner receives without the engine, which only polls it.
    Polled,
    /// An end of a pipe. It is not watched.
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
        /// The turn in which the listener last accepted a connection.
        turn: u32,
        /// The number of connections accepted in that turn.
        count: u32,
    },
    /// Splices into the pipe at this index, whose sending side is [`SendOperation::PipeTarget`].
    Splice {
        pipe: u32,
        max: u32,
        token: Token,
    },
    /// Waits for readability and consumes nothing.
    PollReadable {
        token: Token,
    },
    /// This descriptor is a pipe from which bytes move to the socket at this index.
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
    /// The bytes are copied, to be sent at the end of the turn.
    Batched {
        token: Token,
        length: u32,
    },
    /// Boxed because most sends complete at once.
    Send {
        token: Token,
        rest: Box<HeldBytes>,
    },
    /// Sends held bytes, and then those of a source. Boxed like [`SendOperation::Send`].
    SendSource {
        token: Token,
        rest: Box<UnsentSource>,
    },
    /// Splices from the pipe at this index, whose receiving side is
    /// [`ReceiveOperation::PipeSource`].
    Splice {
        pipe: u32,
        max: u32,
        token: Token,
    },
    /// Sends held bytes, and then splices from the pipe at this index.
    SendThenSplice {
        pipe: u32,
        token: Token,
        before: Box<HeldBeforeSplice>,
    },
    /// This descriptor is a pipe into which bytes move from the socket at this index.
    PipeTarget {
        socket: u32,
    },
    /// The attempt to connect has ended, and its completion has not been returned yet.
    Connected {
        token: Token,
        result: Result<(), Error>,
    },
    /// The send has ended, and its completion has not been returned yet.
    Sent {
        token: Token,
        result: Result<(), Error>,
    },
    /// The splice has ended, and its completion has not been returned yet. The pipe is free again.
    Spliced {
        token: Token,
        result: Result<u32, Error>,
    },
}

/// The bytes to send before a splice, and the most bytes that the splice moves.
#[derive(Debug)]
pub(super) struct HeldBeforeSplice {
    pub(super) rest: HeldBytes,
    pub(super) max: u32,
}

impl Descriptor {
    pub(super) fn new(fd: OwnedFd, kind: DescriptorKind) -> Self {
        Self {
            fd,
            kind,
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

    /// Sets the outstanding operation of the receiving direction.
    ///
    /// # Panics
    /// Panics if a receiving operation is outstanding.
    pub(super) fn begin_receiving(&mut self, operation: ReceiveOperation) {
        let idle = matches!(self.receiving, ReceiveOperation::Idle);
        assert!(idle, "one receiving operation at a time: {:?}", self.receiving);
        self.receiving = operation;
    }

    /// Sets the outstanding operation of the sending direction.
    ///
    /// # Panics
    /// Panics if a sending operation is outstanding.
    pub(super) fn begin_sending(&mut self, operation: SendOperation) {
        let idle = matches!(self.sending, SendOperation::Idle);
        assert!(idle, "one sending operation at a time: {:?}", self.sending);
        self.sending = operation;
    }

    /// Returns whether the connection has broken during a send whose completion has not been
    /// returned yet.
    pub(super) fn has_failed_send(&self) -> bool {
        match self.sending {
            SendOperation::Sent { result: Err(error), .. }
            | SendOperation::Spliced { result: Err(error), .. } => !error.is_of_file(),
            _ => false,
        }
    }

    /// Returns whether the operation of the receiving direction needs readability. It may be in the
    /// ready queue already.
    pub(super) fn is_waiting_to_receive(&self) -> bool {
        !matches!(self.receiving, ReceiveOperation::Idle | ReceiveOperation::PipeSource { .. })
    }

    /// Returns whether the operation of the sending direction needs writability. It may be in the
    /// ready queue already.
    pub(super) fn is_waiting_to_send(&self) -> bool {
        matches!(
            self.sending,
            SendOperation::Connect { .. }
                | SendOperation::Send { .. }
                | SendOperation::SendSource { .. }
                | SendOperation::Splice { .. }
                | SendOperation::SendThenSplice { .. }
        )
    }

    /// Records that a send found no room.
    pub(super) fn mark_unwritable(&mut self, watch: &mut impl Watch) {
        self.writable = false;
        watch.notify_unwritable(self.fd.as_fd());
    }

    /// Returns the readiness that the outstanding operations wait for; `None` if no operation
    /// waits, or if all that wait are in the ready queue.
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

/// The unsent part of a send that has a source.
#[derive(Debug)]
pub(super) struct UnsentSource {
    /// Bytes to send before those of the source.
    pub(super) before: HeldBytes,
    pub(super) source: HeldSource,
    /// Number of bytes of the source that were sent: `sent <= source.byte_count()`.
    pub(super) sent: usize,
}

impl UnsentSource {
    pub(super) fn len(&self) -> usize {
        self.before.len() + self.source.source().byte_count() - self.sent
    }
}
