//! Descriptors of the simulated kernel: what each one is, who owns it, what it waits for.

use std::collections::VecDeque;
use std::net::SocketAddr;

use millrace_engine::{Address, Error, HeldBytes, SharedBytes, Token};

/// Who may use a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The engine of that index.
    Engine(usize),
    /// A scripted client or origin.
    Actor,
    /// On its way to an engine.
    Transit,
}

/// What stands behind a descriptor.
#[derive(Debug)]
pub(crate) enum Object {
    /// Connections wait in the backlog, each with its side 1 not yet held by anybody.
    Listener { address: Address, backlog: VecDeque<usize> },
    /// One side of a connection. `outcome` is how its connecting ended, for side 0.
    Stream { connection: usize, side: usize, outcome: Option<Result<(), Error>> },
    /// Datagrams that arrived, oldest first, each with its sender.
    Datagram {
        local: SocketAddr,
        peer: Option<SocketAddr>,
        inbox: VecDeque<(SocketAddr, Box<[u8]>)>,
        error: Option<Error>,
    },
    /// The reading end of a pipe, by its index.
    PipeOut(usize),
    /// The writing end of a pipe.
    PipeIn(usize),
}

/// Which of a descriptor's two operations is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum OperationDirection {
    Receive,
    Send,
}

/// What an outstanding operation does once it can.
#[derive(Debug)]
pub(crate) enum OperationKind {
    Accept,
    Receive {
        max: usize,
    },
    /// From this socket into the pipe whose writing end is named.
    SpliceIn {
        pipe: u32,
        max: usize,
    },
    Connect,
    /// What the kernel has not taken, or why it takes no more, and what follows.
    Send {
        rest: Option<HeldBytes>,
        failed: Option<Error>,
        then: AfterSend,
    },
    /// Takes nothing.
    PollReadable,
    /// A pipe's end whose splice is outstanding at the named socket.
    Partner {
        socket: u32,
    },
}

/// What goes behind the bytes that a send was given.
#[derive(Debug)]
pub(crate) enum AfterSend {
    Nothing,
    /// Bytes that are shared, from the one at `sent` on: they are read only when they go, as the
    /// kernel reads pages that it was only told of.
    SharedBytes {
        shared: Box<dyn SharedBytes>,
        sent: usize,
    },
    /// From the pipe whose reading end is named into this socket.
    Splice {
        pipe: u32,
        max: usize,
    },
}

/// An outstanding operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) token: Token,
    pub(crate) kind: OperationKind,
    /// Tells it from an earlier one of the same descriptor and direction.
    pub(crate) serial: u64,
    /// An attempt is under way: in the event queue, or at its engine.
    pub(crate) queued: bool,
    /// A receive of the same descriptor was announced when this send was queued.
    pub(crate) queued_after_receive: bool,
}

/// A descriptor.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) owner: Owner,
    pub(crate) object: Object,
    pub(crate) receive: Option<Operation>,
    pub(crate) send: Option<Operation>,
}

impl Descriptor {
    pub(crate) fn operation(&mut self, direction: OperationDirection) -> &mut Option<Operation> {
        match direction {
            OperationDirection::Receive => &mut self.receive,
            OperationDirection::Send => &mut self.send,
        }
    }

    /// One word for traces and leak reports.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.object {
            Object::Listener { .. } => "listener",
            Object::Stream { side: 0, .. } => "connecting side",
            Object::Stream { .. } => "accepting side",
            Object::Datagram { .. } => "datagram socket",
            Object::PipeOut(_) => "reading end of a pipe",
            Object::PipeIn(_) => "writing end of a pipe",
        }
    }
}
