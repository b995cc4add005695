//! What is asked of a splice and what is told of it, in the words of the paper.

use std::fmt;

use millrace_engine::Key;
use millrace_sys::Errno;

/// A transfer that is under way, or was: no handle names two of them, until 2^32 others have had
/// the same place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub(crate) Key);

impl Handle {
    /// The handle as a number, for callers in other languages.
    pub fn to_bits(self) -> u64 {
        u64::from(self.0.generation) << 32 | u64::from(self.0.slot)
    }

    /// The handle that [`Handle::to_bits`] made a number of. Any other number is that of a transfer
    /// which is not there ([`Error::Stale`]), or of another one.
    pub fn from_bits(bits: u64) -> Self {
        Self(Key { slot: bits as u32, generation: (bits >> 32) as u32 })
    }
}

/// One of the two connections of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The source of a unidirectional transfer.
    Fd0,
    /// Its destination.
    Fd1,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Fd0 => Self::Fd1,
            Self::Fd1 => Self::Fd0,
        }
    }
}

/// Which way bytes go, and how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpliceMode {
    /// Both ways, and so does the close of either connection: for tunnels. Ends when both are
    /// closed. The application may neither read nor write.
    Bidirectional,
    /// From `fd0` to `fd1`. Close is not forwarded. What comes from `fd1` is the application's.
    Unidirectional {
        /// Ends after so many bytes of payload; `None`, or if it closes earlier: when `fd0` does.
        limit: Option<u64>,
    },
}

/// KeepCopy: the application reads the payload too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepCopy {
    /// Bytes that make the source readable; `1 <= min2read <= max2cache`.
    pub min2read: usize,
    /// Bytes forwarded and not yet read at which forwarding stalls. A pipe holds them, so it also
    /// stalls when that is full: after 64 pieces as the kernel has them, short segments or 32 KB and
    /// more each. The source is readable then.
    pub max2cache: usize,
}

/// What to splice.
#[derive(Debug)]
pub struct Request<'a, S> {
    /// The first connection: the source, if there is one. Both are kept until the transfer is
    /// released, and nobody else may end, read or write them meanwhile but through the splicer.
    pub fd0: S,
    /// The second connection: the destination.
    pub fd1: S,
    /// Which way, and how long.
    pub mode: SpliceMode,
    /// KeepCopy, which a unidirectional transfer can have.
    pub keep_copy: Option<KeepCopy>,
    /// Whether the transfer is released by its end. If not, it has to be unspliced.
    pub auto_release: bool,
    /// What `fd1` is to be sent before anything else: a head, and a first segment.
    pub prefix: &'a [u8],
    /// With KeepCopy: filled with what is kept already when the call returns. Empty: nothing is.
    pub input: &'a mut [u8],
}

/// What [`Splicer::splice`](crate::Splicer::splice) came to.
#[derive(Debug)]
pub enum SpliceOutcome {
    /// The transfer goes on.
    Started {
        /// Its name.
        handle: Handle,
        /// Bytes put into the input buffer.
        input: usize,
    },
    /// The transfer is over, and released.
    Ended {
        /// How it ended.
        end: End,
        /// What was moved, and what is given back.
        released: Released,
        /// Bytes put into the input buffer.
        input: usize,
    },
}

/// What happened to a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// With KeepCopy: at least `min2read` bytes may be read, or no more will come before they are.
    /// Comes again after each read that leaves so many.
    Readable(Handle),
    /// The transfer ended, after all that was kept had been read. Comes once.
    Ended {
        /// Which one; stale already if it was to be released by its end.
        handle: Handle,
        /// How it ended.
        end: End,
        /// Payload in bytes that went to `fd1`, and to `fd0`.
        forwarded: [u64; 2],
    },
}

impl Notice {
    /// Which transfer is meant.
    pub fn handle(&self) -> Handle {
        match *self {
            Self::Readable(handle) | Self::Ended { handle, .. } => handle,
        }
    }
}

/// How a transfer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The payload limit was reached.
    Limit,
    /// The source closed, or both connections.
    Closed,
    /// A connection was aborted, or failed. The source of a unidirectional transfer: what had come
    /// was forwarded. Its destination, with KeepCopy: the application got the whole payload.
    Aborted {
        /// Which connection.
        side: Side,
        /// What the kernel said of it.
        error: Errno,
    },
    /// The transfer could not be gone on with, for want of memory or registrations.
    Failed(Errno),
}

impl End {
    /// The error of an end that was none of the planned ones.
    pub fn error(self) -> Option<Errno> {
        match self {
            Self::Limit | Self::Closed => None,
            Self::Aborted { error, .. } | Self::Failed(error) => Some(error),
        }
    }
}

/// What is left of a transfer that was released.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Released {
    /// How it had ended; `None` if it was broken off.
    pub end: Option<End>,
    /// From `fd0` to `fd1`, and from `fd1` to `fd0`.
    pub directions: [DirectionResult; 2],
}

/// What went one way. Payload taken from the source is `forwarded` and, behind the first
/// `first_unsent`, `unsent`: nothing else, and nothing twice. If it was kept and the destination is
/// gone, it is what the application read and `kept`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DirectionResult {
    /// Payload in bytes that the sink took.
    pub forwarded: u64,
    /// What the sink did not take, in order: the application has to send it. Empty if the sink is
    /// gone and the payload was kept.
    pub unsent: Vec<u8>,
    /// How many bytes of `unsent` are of the first bytes of the request, and no payload.
    pub prefix_unsent: usize,
    /// With KeepCopy: what was forwarded, or cannot be any more, and not read. Payload in `unsent`
    /// is not in it: who stores the payload appends that, from `first_unsent` on.
    pub kept: Vec<u8>,
}

/// Whether a direction passes the close of its source on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HalfClose {
    Forwarded,
    NotForwarded,
}

/// Why something was not done; nothing was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Caller: a request that means nothing, such as KeepCopy both ways.
    Request(&'static str),
    /// Connection: neither ESTABLISHED nor CLOSE_WAIT, or a socket of another kind.
    NotConnected(Side),
    /// Caller: calls on the descriptor would wait (O_NONBLOCK is not set).
    Blocking(Side),
    /// Caller: the connection is part of another transfer of the same splicer.
    Busy(Side),
    /// Us: as many transfers as are allowed are under way. Sound to try again when one ended.
    Full,
    /// Caller: no such transfer; it was released.
    Stale,
    /// Caller: the transfer does not let the application do that.
    NotPermitted,
    /// Nothing can be read or written yet.
    WouldBlock,
    /// Connection or kernel: a call failed.
    Kernel(Errno),
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        if error == Errno::AGAIN { Self::WouldBlock } else { Self::Kernel(error) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(what) => f.write_str(what),
            Self::NotConnected(side) => {
                write!(f, "{side:?} is no TCP connection in ESTABLISHED or CLOSE_WAIT")
            }
            Self::Blocking(side) => write!(f, "{side:?} blocks"),
            Self::Busy(side) => write!(f, "{side:?} is spliced already"),
            Self::Full => f.write_str("as many transfers as are allowed are under way"),
            Self::Stale => f.write_str("the transfer was released"),
            Self::NotPermitted => f.write_str("the transfer does not let the application do that"),
            Self::WouldBlock => f.write_str("nothing can be read or written yet"),
            Self::Kernel(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}
