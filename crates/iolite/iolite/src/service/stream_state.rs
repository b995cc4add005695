//! The state of a channel beside a pipe, as both ends see it.

use std::os::fd::BorrowedFd;

use millrace_sys::{Errno, PacketEvents};

use crate::channel::Channel;

/// How far the reader has read the pipe. With the bytes that wait in the pipe, it says after which
/// bytes an aggregate follows, also if another process has written them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamState {
    /// The bytes that were read from the pipe since it was paired.
    pub(super) consumed: u64,
    /// More are being read now.
    pub(super) is_reading: bool,
}

impl StreamState {
    pub(super) fn to_number(self) -> u64 {
        self.consumed << 1 | u64::from(self.is_reading)
    }

    pub(super) fn from_number(number: u64) -> Self {
        Self { consumed: number >> 1, is_reading: number & 1 == 1 }
    }
}

/// The length of the text before an aggregate that follows bytes in the pipe: their position.
pub(super) const TEXT_BYTES: usize = 8;

/// Returns whether the process at the other end of a channel is gone, or the other end of its pipe.
pub(super) fn is_gone(channel: &Channel, pipe: Option<BorrowedFd<'_>>) -> bool {
    let pipe = pipe.unwrap_or(channel.socket());
    // The daemon may not have closed its copy of the socket yet.
    is_one_gone([channel.socket(), pipe]) || channel.peer_has_ended()
}

/// Returns whether no process can read from a pipe any more.
pub(super) fn is_without_reader(pipe: BorrowedFd<'_>) -> bool {
    is_one_gone([pipe, pipe])
}

/// Returns whether the other end of a socket or a pipe is gone, of one of two.
fn is_one_gone(files: [BorrowedFd<'_>; 2]) -> bool {
    loop {
        match millrace_sys::wait_for_two(files.map(|file| (file, PacketEvents::None)), 0) {
            Ok(states) => return states.iter().any(|of| of.is_gone),
            Err(Errno::INTR) => {}
            // Without memory for poll(2), the next call notices it.
            Err(_) => return false,
        }
    }
}
