//! Descriptors of the simulated kernel: their objects, their owners, and the operations outstanding
//! for them.

use std::collections::VecDeque;
use std::net::SocketAddr;

use millrace_engine::{Address, Error, HeldBytes, HeldSource, Token};

/// The owner of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The engine with this index.
    Engine(usize),
    /// A scripted client or origin.
    Actor,
    /// None: the descriptor is on its way to an engine.
    Transit,
}

/// The object of a descriptor.
#[derive(Debug)]
pub(crate) enum Object {
    /// A listener. The backlog contains connections whose endpoint 1 is not accepted yet.
    Listener { address: Address, backlog: VecDeque<usize> },
    /// One endpoint of a connection. `outcome` is the result of connecting, for endpoint 0.
    Stream { connection: usize, side: usize, outcome: Option<Result<(), Error>> },
    /// A datagram socket. `inbox` contains datagrams with their senders, oldest first.
    Datagram {
        local: SocketAddr,
        peer: Option<SocketAddr>,
        inbox: VecDeque<(SocketAddr, Box<[u8]>)>,
        error: Option<Error>,
    },
    /// The reading end of the pipe with this index.
    PipeReadEnd(usize),
    /// The writing end of the pipe with this index.
    PipeWriteEnd(usize),
}

/// A direction of a descriptor. Each has at most one operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum OperationDirection {
    Receive,
    Send,
}

/// The kind of an outstanding operation.
#[derive(Debug)]
pub(crate) enum OperationKind {
    Accept,
    Receive {
        max: usize,
    },
    /// Splices from this socket into a pipe, given by its writing end.
    SpliceIn {
        pipe: u32,
        max: usize,
    },
    Connect,
    /// Sends. `rest` are the bytes that the kernel has not taken, `failed` is the error after which
    /// it takes no more, and `then` is what follows the bytes.
    Send {
        rest: Option<HeldBytes>,
        failed: Option<Error>,
        then: AfterSend,
    },
    /// Waits for readability and consumes nothing.
    PollReadable,
    /// Marks an end of a pipe as in use by a splice that is outstanding at `socket`.
    Partner {
        socket: u32,
    },
}

/// The continuation of a send after its bytes.
#[derive(Debug)]
pub(crate) enum AfterSend {
    Nothing,
    /// The bytes of a source after the first `sent` ones.
    Source {
        source: HeldSource,
        sent: usize,
    },
    /// A splice into this socket from a pipe, given by its reading end.
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
    /// Distinguishes the operation from earlier ones of the same descriptor and direction.
    pub(crate) serial: u64,
    /// An attempt is pending, in the event queue or at the engine.
    pub(crate) attempt_pending: bool,
    /// A receive of the same descriptor was ready before this send was submitted.
    pub(crate) submitted_after_receive: bool,
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

    /// Returns the kind of the descriptor, for traces and leak reports.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.object {
            Object::Listener { .. } => "listener",
            Object::Stream { side: 0, .. } => "connecting side",
            Object::Stream { .. } => "accepting side",
            Object::Datagram { .. } => "datagram socket",
            Object::PipeReadEnd(_) => "reading end of a pipe",
            Object::PipeWriteEnd(_) => "writing end of a pipe",
        }
    }
}
