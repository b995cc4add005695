//! The options of a channel, and the results of receiving.

use crate::account::Account;
use crate::aggregate::Aggregate;
use crate::slab::Slab;

/// The options of one side of a [`Channel`](crate::Channel).
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    /// The frames that this side's ring of shared memory holds, at most [`RING_FRAMES_MAX`]; 0:
    /// this side sends through the socket. A ring is faster, and an aggregate takes one frame for
    /// each slice.
    ///
    /// [`RING_FRAMES_MAX`]: crate::limits::RING_FRAMES_MAX
    pub ring_frames: usize,
    /// The bytes of that ring for copied slices, at most [`RING_BYTES_MAX`]. It takes memory as it
    /// is used. With less than 32 KB, long slices are copied through the socket.
    ///
    /// [`RING_BYTES_MAX`]: crate::limits::RING_BYTES_MAX
    pub ring_bytes: usize,
    /// Bytes that were copied by the sender are received into this slab.
    pub slab: Slab,
    /// Sealed files of the other process are charged to this account.
    pub account: Account,
    /// Whether to join pools of the other process. It can change the bytes that it passes by
    /// reference, so it has to be trusted.
    pub joins_pools: bool,
    /// Shorter slices are copied through the ring, if they cannot be passed by reference; longer
    /// ones are copied into a sealed file each, which takes longer, but no memory of the receiver's
    /// slab.
    pub copied_max: usize,
    /// The bytes of pools that are under way at a time.
    pub in_flight_max: u64,
    /// The most bytes of the text before an aggregate that are received; the rest is dropped.
    pub text_max: usize,
}

impl ChannelOptions {
    /// Returns the defaults, for a peer that is not trusted.
    pub fn new(slab: Slab) -> Self {
        Self {
            ring_frames: 128,
            ring_bytes: 1 << 20,
            slab,
            account: Account::new(64 << 20),
            joins_pools: false,
            copied_max: 1 << 20,
            in_flight_max: 16 << 20,
            text_max: 0,
        }
    }
}

/// The result of [`Channel::try_receive`](crate::Channel::try_receive).
#[derive(Debug)]
pub enum Received {
    /// The next aggregate.
    Aggregate(Aggregate),
    /// There is none yet.
    Nothing,
    /// The other process has closed the channel, and everything before that was received.
    Ended,
}
