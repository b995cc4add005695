//! The reasons why a channel ends.

use std::fmt;

use millrace_sys::Errno;

use crate::error::{AllocError, Error};
use crate::limits::PARTS_SENT_MAX;
use crate::sealed::RefusedMemory;

/// The reason why a channel cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelError {
    /// The other process has closed it.
    Closed,
    /// The other process does not keep to the protocol.
    Peer(PeerFault),
    /// It has passed a descriptor that is not accepted.
    Refused(RefusedMemory),
    /// There is no memory for the bytes that it has sent. The call may be repeated.
    NoMemory(AllocError),
    /// The aggregate has more parts than a channel passes: this many. The channel can be used on.
    Parts(usize),
    /// Memory of this process could not be created.
    Memory(Error),
    /// The kernel refused a call: its name, and the error number.
    Kernel(&'static str, Errno),
}

/// How the other process has broken the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerFault {
    /// A packet or an entry of the ring is no frame, or has wrong numbers.
    Frame,
    /// A packet has more or fewer descriptors than its frame needs.
    Descriptors,
    /// The positions in its page are impossible.
    Positions,
    /// A reference to a pool that this process has not joined.
    Pool,
    /// A reference to a block that it has not passed, or has retired.
    Block,
    /// A reference beyond the end of an extent or a block.
    Extent,
    /// A reference to a file that it has not passed, or to bytes beyond its end.
    File,
    /// An aggregate with more parts than [`PARTS_PER_AGGREGATE_MAX`].
    ///
    /// [`PARTS_PER_AGGREGATE_MAX`]: crate::limits::PARTS_PER_AGGREGATE_MAX
    Parts,
    /// More packets than its ring announces.
    Packets,
    /// An aggregate with more copied bytes than half of the slab.
    Aggregate,
    /// An aggregate that is no message of a program.
    Message,
}

impl fmt::Display for PeerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frame => "a frame that is not valid",
            Self::Descriptors => "a packet with a wrong number of descriptors",
            Self::Positions => "impossible positions in the page of a channel",
            Self::Pool => "a reference to a pool that was not joined",
            Self::Block => "a reference to a block that was not passed",
            Self::Extent => "a reference beyond the end of memory",
            Self::File => "a reference to a file that was not passed, or beyond its end",
            Self::Parts => "an aggregate with too many parts",
            Self::Packets => "more packets than the ring announces",
            Self::Aggregate => "an aggregate with more copied bytes than half of the slab",
            Self::Message => "a message that is not valid",
        })
    }
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the other process has closed the channel"),
            Self::Peer(fault) => write!(f, "the other process sent {fault}"),
            Self::Refused(refused) => write!(f, "the other process passed {refused}"),
            Self::NoMemory(error) => write!(f, "no memory for bytes of the channel: {error}"),
            Self::Parts(parts) => {
                write!(f, "an aggregate of {parts} parts (expected: at most {})", PARTS_SENT_MAX)
            }
            Self::Memory(error) => error.fmt(f),
            Self::Kernel(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for ChannelError {}

impl From<PeerFault> for ChannelError {
    fn from(fault: PeerFault) -> Self {
        Self::Peer(fault)
    }
}

impl From<RefusedMemory> for ChannelError {
    fn from(refused: RefusedMemory) -> Self {
        Self::Refused(refused)
    }
}

impl From<Error> for ChannelError {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}
