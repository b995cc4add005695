//! The state of a channel beside a pipe or a connection, as both ends see it.

use std::os::fd::BorrowedFd;

use millrace_sys::{
    DescriptorState, Errno, InodeKind, InodeStatus, PacketEvents, StreamFamily, waiting_bytes,
};

use crate::channel::Channel;

/// The kinds of streams. They differ in how an end finds out which bytes were written before.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum StreamKind {
    #[default]
    Pipe,
    /// A Unix socket, with the inode of the one at its other end if that is visible here.
    Unix { peer: Option<u64> },
    /// A TCP connection, with the number that `millrace_sys::tcp_written` returns before the first
    /// byte.
    Tcp { first: u64 },
}

/// How far the reader has read the stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct StreamState {
    /// The bytes that were read: from a pipe or a Unix socket since it was paired, from a TCP
    /// connection in all.
    pub(super) consumed: u64,
    /// The reader has used its descriptor since the writer was paired, so both are ends of the same
    /// connection. The addresses of a connection that was closed can be those of a new one.
    pub(super) is_confirmed: bool,
    /// The reader is reading bytes of the stream now.
    pub(super) is_reading: bool,
}

impl StreamState {
    pub(super) fn to_number(self) -> u64 {
        self.consumed << 2 | u64::from(self.is_confirmed) << 1 | u64::from(self.is_reading)
    }

    pub(super) fn from_number(number: u64) -> Self {
        Self { consumed: number >> 2, is_confirmed: number & 2 != 0, is_reading: number & 1 != 0 }
    }
}

/// The length of the text before an aggregate that follows bytes in the stream: their position.
pub(super) const TEXT_BYTES: usize = 8;
/// The file system of pipes that have no name (statfs(2), PIPEFS_MAGIC).
const PIPE_FILE_SYSTEM: u64 = 0x5049_5045;
/// How often the position of a stream is read that changes.
const POSITION_TRIES: usize = 100;

/// A stream that was paired.
pub(super) struct PairedStream {
    pub(super) kind: StreamKind,
    /// How far it was read before.
    pub(super) state: StreamState,
    /// The bytes that waited in it before there was a channel.
    pub(super) waiting: u64,
    pub(super) channel: Channel,
    /// The memory files that a reader holds of all streams.
    pub(super) files_max: usize,
}

/// The result of looking at a descriptor that may be paired.
pub(super) enum Candidate {
    Stream(StreamKind, StreamState),
    /// The other end of the connection was not accepted yet.
    Later,
    /// It carries bytes.
    Never,
}

impl StreamKind {
    /// Finds out the kind of a stream before it is paired, and how far it was read.
    ///
    /// # Errors
    /// Those of the kernel: it carries bytes.
    pub(super) fn of(stream: BorrowedFd<'_>, status: &InodeStatus) -> Result<Candidate, Errno> {
        let nothing = StreamState::default();
        if status.kind == InodeKind::Pipe {
            // One with a name can be opened by others later.
            let has_no_name = millrace_sys::file_system(stream)? == PIPE_FILE_SYSTEM;
            let pipe = Candidate::Stream(Self::Pipe, nothing);
            return Ok(if has_no_name { pipe } else { Candidate::Never });
        }
        match millrace_sys::stream_family(stream)? {
            Some(StreamFamily::Unix) => Ok(match millrace_sys::unix_peer(stream) {
                Ok(0) => Candidate::Later,
                peer => Candidate::Stream(Self::Unix { peer: peer.ok() }, nothing),
            }),
            Some(StreamFamily::Tcp) => tcp_candidate(stream),
            None => Ok(Candidate::Never),
        }
    }

    /// Returns the state of a stream that has ended here. Errors of a socket (POLLERR) may be about
    /// single packets.
    fn is_over(self, state: &DescriptorState) -> bool {
        if self == Self::Pipe { state.is_gone } else { state.is_hung_up }
    }
}

/// Examines a TCP connection. Positions are those of the kernel's counters.
fn tcp_candidate(stream: BorrowedFd<'_>) -> Result<Candidate, Errno> {
    let connection = millrace_sys::tcp_connection(stream)?;
    if !connection.is_some_and(|connection| connection.is_within_host()) {
        return Ok(Candidate::Never);
    }
    for _ in 0..POSITION_TRIES {
        let before = millrace_sys::tcp_counters(stream)?;
        let (Some(written), waiting) = (millrace_sys::tcp_written(stream)?, waiting_bytes(stream)?)
        else {
            return Ok(Candidate::Never);
        };
        let after = millrace_sys::tcp_counters(stream)?;
        if (before.written, before.received) != (after.written, after.received) {
            continue;
        }
        let first = written.wrapping_sub(after.written);
        if !after.is_established || first > 1 {
            return Ok(Candidate::Never);
        }
        let consumed = after.received.saturating_sub(waiting);
        let state = StreamState { consumed, ..StreamState::default() };
        return Ok(Candidate::Stream(StreamKind::Tcp { first }, state));
    }
    Ok(Candidate::Later)
}

/// Returns whether the process at the other end of a channel is gone, or the other end of its
/// stream.
pub(super) fn is_gone(channel: &Channel, stream: Option<(BorrowedFd<'_>, StreamKind)>) -> bool {
    let (fd, kind) = stream.unwrap_or((channel.socket(), StreamKind::Pipe));
    let states = states_of([channel.socket(), fd]);
    // The daemon may not have closed its copy of the socket yet.
    states.is_some_and(|[end, stream]| end.is_gone || kind.is_over(&stream))
        || channel.peer_has_ended()
}

/// Returns whether no process can read from a stream any more.
pub(super) fn is_without_reader(stream: BorrowedFd<'_>, kind: StreamKind) -> bool {
    states_of([stream, stream]).is_some_and(|[state, _]| kind.is_over(&state))
}

/// Returns the states of two descriptors now. Without memory for poll(2) there are none; the next
/// call on a descriptor notices its end.
fn states_of(files: [BorrowedFd<'_>; 2]) -> Option<[DescriptorState; 2]> {
    loop {
        match millrace_sys::wait_for_two(files.map(|file| (file, PacketEvents::None)), 0) {
            Ok(states) => return Some(states),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// The bytes of a stream that an aggregate follows.
pub(super) enum Follows {
    Nothing,
    /// All bytes of the stream before this position.
    Bytes(u64),
}

/// Returns the bytes that an aggregate follows which is sent now. Returns `None` if that cannot be
/// found out, as while the reader reads, or if the bytes have to go through the stream.
///
/// # Errors
/// Those of the kernel.
pub(super) fn bytes_before(
    channel: &Channel,
    stream: BorrowedFd<'_>,
    kind: StreamKind,
) -> Result<Option<Follows>, Errno> {
    let state = || StreamState::from_number(channel.stream());
    if kind != StreamKind::Pipe && !state().is_confirmed {
        return Ok(None);
    }
    let waiting: &dyn Fn() -> Result<u64, Errno> = match kind {
        StreamKind::Pipe => &|| waiting_bytes(stream),
        StreamKind::Unix { peer } => {
            // The reader may have ended this direction.
            if millrace_sys::check_sending(stream).is_err() {
                return Ok(None);
            }
            // The memory of bytes is freed after the reader has received them.
            if millrace_sys::unacknowledged_bytes(stream)? == 0 {
                return Ok(Some(Follows::Nothing));
            }
            let Some(peer) = peer else { return Ok(None) };
            &move || millrace_sys::unix_unread(peer)
        }
        StreamKind::Tcp { first } => {
            // A peer that has ended its direction may have closed the connection. Only bytes that
            // are sent there find out.
            let written = millrace_sys::tcp_written(stream)?;
            return Ok(written.map(|written| Follows::Bytes(written.saturating_sub(first))));
        }
    };
    for _ in 0..POSITION_TRIES {
        let before = state();
        let Ok(waiting) = waiting() else { return Ok(None) };
        if before == state() && !before.is_reading {
            return Ok(Some(match waiting {
                0 => Follows::Nothing,
                _ => Follows::Bytes(before.consumed.saturating_add(waiting)),
            }));
        }
        std::thread::yield_now();
    }
    Ok(None)
}
