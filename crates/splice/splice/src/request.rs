//! Requests to a splicer and their results. Terms are those of the paper.

use std::fmt;

use millrace_engine::Key;
use millrace_sys::Errno;

/// Identifies a transfer. A handle stays unique until 2^32 further transfers have used the same
/// slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub(crate) Key);

impl Handle {
    /// Returns the handle as a number, for callers in other languages.
    pub fn to_bits(self) -> u64 {
        u64::from(self.0.generation) << 32 | u64::from(self.0.slot)
    }

    /// Returns the handle for a number from [`Handle::to_bits`]. Any other number identifies
    /// another transfer or none ([`Error::Stale`]).
    pub fn from_bits(bits: u64) -> Self {
        Self(Key { slot: bits as u32, generation: (bits >> 32) as u32 })
    }
}

/// One of the two connections of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The first connection: the source of a unidirectional transfer.
    Fd0,
    /// The second connection: the destination of a unidirectional transfer.
    Fd1,
}

impl Side {
    /// Returns the other side.
    pub fn other(self) -> Self {
        match self {
            Self::Fd0 => Self::Fd1,
            Self::Fd1 => Self::Fd0,
        }
    }
}

/// The directions of a transfer, and when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpliceMode {
    /// Forwards both directions and the close of either connection, as a tunnel does. Ends when
    /// both connections are closed. The application may neither read nor write.
    Bidirectional,
    /// Forwards from `fd0` to `fd1`, without the close. The application receives the data from
    /// `fd1`.
    Unidirectional {
        /// Payload bytes after which the transfer ends; `None`: no limit. The close of `fd0` always
        /// ends it.
        limit: Option<u64>,
    },
}

/// The bounds of KeepCopy, with which the application reads the payload too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepCopy {
    /// [`Notice::Readable`] is reported from this many unread payload bytes on: `1 <= min2read <=
    /// max2cache`.
    pub min2read: usize,
    /// The maximum of bytes that were forwarded and not read. At this limit, forwarding stops. The
    /// bytes are in a pipe of 64 segments, each from a few bytes to 32 KB or more. If the pipe is
    /// full, forwarding stops earlier, and [`Notice::Readable`] is reported.
    pub max2cache: usize,
}

/// A request to splice two connections.
#[derive(Debug)]
pub struct Request<'a, S> {
    /// The first connection: the source of a unidirectional transfer. The splicer keeps both
    /// connections until the release. Until then, only the splicer may close, read or write them.
    pub fd0: S,
    /// The second connection: the destination of a unidirectional transfer.
    pub fd1: S,
    /// The directions, and when the transfer ends.
    pub mode: SpliceMode,
    /// KeepCopy, for a unidirectional transfer only.
    pub keep_copy: Option<KeepCopy>,
    /// Whether the end of the transfer releases it. Otherwise, the application must call
    /// `unsplice`.
    pub auto_release: bool,
    /// Bytes sent to `fd1` before the payload, such as a response header.
    pub prefix: &'a [u8],
    /// With KeepCopy: a buffer for payload that was forwarded within the call. May be empty.
    pub input: &'a mut [u8],
}

/// The result of [`Splicer::splice`](crate::Splicer::splice).
#[derive(Debug)]
pub enum SpliceOutcome {
    /// The transfer continues.
    Started {
        /// The handle of the transfer.
        handle: Handle,
        /// Bytes written to the input buffer.
        input: usize,
    },
    /// The transfer ended and was released.
    Ended {
        /// How it ended.
        end: End,
        /// The byte counts, and the bytes that were not sent or not read.
        released: Released,
        /// Bytes written to the input buffer.
        input: usize,
    },
}

/// An event of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// With KeepCopy: at least `min2read` bytes can be read, or fewer, if no more can arrive before
    /// a read. Reported again after a read if this still holds.
    Readable(Handle),
    /// The transfer ended; with KeepCopy, after all kept payload was read. Reported once.
    Ended {
        /// The handle of the transfer; no longer valid if its end released it.
        handle: Handle,
        /// How it ended.
        end: End,
        /// Payload bytes sent to `fd1` and to `fd0`.
        forwarded: [u64; 2],
    },
}

impl Notice {
    /// Returns the handle of the transfer.
    pub fn handle(&self) -> Handle {
        match *self {
            Self::Readable(handle) | Self::Ended { handle, .. } => handle,
        }
    }
}

/// The reason why a transfer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The payload limit was reached.
    Limit,
    /// The source closed. In a bidirectional transfer, both connections closed.
    Closed,
    /// A connection was aborted or failed. In a unidirectional transfer, payload that had arrived
    /// from a failed source was forwarded. If the destination of a transfer with KeepCopy failed,
    /// the application got the whole payload.
    Aborted {
        /// The connection that failed.
        side: Side,
        /// The error from the kernel.
        error: Errno,
    },
    /// The kernel had no memory, or no room for another epoll entry.
    Failed(Errno),
}

impl End {
    /// Returns the error of an abort or failure.
    pub fn error(self) -> Option<Errno> {
        match self {
            Self::Limit | Self::Closed => None,
            Self::Aborted { error, .. } | Self::Failed(error) => Some(error),
        }
    }
}

/// The result of a released transfer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Released {
    /// How the transfer had ended; `None` if it was unspliced before.
    pub end: Option<End>,
    /// From `fd0` to `fd1`, and from `fd1` to `fd0`.
    pub directions: [DirectionResult; 2],
}

/// The bytes of one direction. The payload that was taken from the source is exactly `forwarded`
/// followed by `unsent` without its first `prefix_unsent` bytes. If the destination failed with
/// KeepCopy, it is exactly the bytes that the application read followed by `kept`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DirectionResult {
    /// Payload bytes that were sent to the sink.
    pub forwarded: u64,
    /// Bytes that the application has to send, in order. Empty if the sink failed and the payload
    /// was kept.
    pub unsent: Vec<u8>,
    /// Bytes at the start of `unsent` that belong to the prefix, not to the payload.
    pub prefix_unsent: usize,
    /// With KeepCopy: payload that the application has not read. It was forwarded, unless the sink
    /// failed. To store the whole payload, append `unsent` from `prefix_unsent` on.
    pub kept: Vec<u8>,
}

/// Whether a direction forwards the close of its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HalfClose {
    Forwarded,
    NotForwarded,
}

/// The reason why a call failed. The call did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Caller: the request is invalid, such as KeepCopy in both directions.
    Request(&'static str),
    /// Connection: neither ESTABLISHED nor CLOSE_WAIT, or not TCP.
    NotConnected(Side),
    /// Caller: the descriptor is blocking (O_NONBLOCK is not set).
    Blocking(Side),
    /// Caller: the connection is part of another transfer of the same splicer.
    Busy(Side),
    /// Splicer: the maximum number of transfers is reached. Retry after one was released.
    Full,
    /// Caller: the handle is not valid; the transfer was released.
    Stale,
    /// Caller: the transfer does not allow the application to do this.
    NotPermitted,
    /// No byte can be read or written now.
    WouldBlock,
    /// Connection or kernel: a system call failed.
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
            Self::Request(what) => write!(f, "invalid request: {what}"),
            Self::NotConnected(side) => {
                write!(f, "{side:?} is not a TCP connection in ESTABLISHED or CLOSE_WAIT")
            }
            Self::Blocking(side) => write!(f, "{side:?} is blocking (expected: O_NONBLOCK)"),
            Self::Busy(side) => write!(f, "{side:?} is part of another transfer"),
            Self::Full => f.write_str("the maximum number of transfers is reached"),
            Self::Stale => f.write_str("the transfer was released"),
            Self::NotPermitted => {
                f.write_str("the transfer does not allow the application to do this")
            }
            Self::WouldBlock => f.write_str("no byte can be read or written now"),
            Self::Kernel(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}
