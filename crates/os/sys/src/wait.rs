//! Waiting for two descriptors at a time, and the bytes that wait in one.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Result, last_error};

/// The event of a packet socket or a pipe that is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketEvents {
    /// Only the end of the connection, or of the other end of the pipe.
    None,
    /// A packet or bytes, or the end.
    Readable,
    /// Room, or the end.
    Writable,
    /// Only the end of the connection, or of the peer's direction of it (POLLRDHUP).
    Ended,
    /// Bytes, the end of the peer's direction of a connection, or the end.
    ReadableOrEnded,
}

/// The state of a descriptor, as poll(2) reports it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DescriptorState {
    /// The events that were waited for.
    pub is_ready: bool,
    /// The other end is gone: no writer of a pipe is left (POLLHUP), or no reader (POLLERR).
    pub is_gone: bool,
    /// Both directions of a connection have ended, or no writer of a pipe is left (POLLHUP).
    pub is_hung_up: bool,
    /// The peer has ended its direction of a connection, if that was waited for (POLLRDHUP). All
    /// its bytes have arrived.
    pub has_ended: bool,
}

/// Waits until an event of one of two descriptors has happened, at most for `wait_ms_max`
/// milliseconds, and returns the state of both.
///
/// # Errors
/// Those of poll(2), with EINTR.
pub fn wait_for_two(
    descriptors: [(BorrowedFd<'_>, PacketEvents); 2],
    wait_ms_max: u32,
) -> Result<[DescriptorState; 2]> {
    let mut fds = descriptors.map(|(fd, events)| PollFd::from_borrowed_fd(fd, flags(events)));
    let timeout = Timespec {
        tv_sec: i64::from(wait_ms_max / 1000),
        tv_nsec: i64::from(wait_ms_max % 1000) * 1_000_000,
    };
    poll(&mut fds, Some(&timeout))?;
    Ok(fds.map(|fd| DescriptorState {
        is_ready: fd.revents().intersects(PollFlags::IN | PollFlags::OUT),
        is_gone: fd.revents().intersects(PollFlags::HUP | PollFlags::ERR),
        is_hung_up: fd.revents().intersects(PollFlags::HUP),
        has_ended: fd.revents().intersects(PollFlags::RDHUP),
    }))
}

pub(crate) fn flags(events: PacketEvents) -> PollFlags {
    match events {
        PacketEvents::None => PollFlags::empty(),
        PacketEvents::Readable => PollFlags::IN,
        PacketEvents::Writable => PollFlags::OUT,
        PacketEvents::Ended => PollFlags::RDHUP,
        PacketEvents::ReadableOrEnded => PollFlags::IN | PollFlags::RDHUP,
    }
}

/// Returns the bytes that can be read from a pipe or a socket without waiting (FIONREAD). Each end
/// of a pipe returns them.
///
/// # Errors
/// Those of ioctl(2).
pub fn waiting_bytes(fd: BorrowedFd<'_>) -> Result<u64> {
    let mut count: libc::c_int = 0;
    // SAFETY: the kernel stores an int to `count`, which outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) } {
        0 => Ok(u64::from(count.unsigned_abs())),
        _ => Err(last_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_ends_of_a_pipe_are_waited_for() {
        let ((one, mut other), (reader, _writer)) =
            (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let wait = || {
            let first = (one.as_fd(), PacketEvents::Readable);
            wait_for_two([first, (reader.as_fd(), PacketEvents::Readable)], 0).unwrap()
        };
        let nothing = DescriptorState::default();
        assert_eq!(wait(), [nothing; 2]);
        other.write_all(b"abc").unwrap();
        assert_eq!(wait(), [DescriptorState { is_ready: true, ..nothing }, nothing]);
        assert_eq!(waiting_bytes(one.as_fd()), Ok(3));
        assert_eq!(waiting_bytes(other.as_fd()), Ok(3));
        drop(other);
        let ended = DescriptorState { is_gone: true, is_hung_up: true, ..nothing };
        assert_eq!(wait(), [DescriptorState { is_ready: true, ..ended }, nothing]);
    }

    #[test]
    fn the_end_of_one_direction_is_noticed() {
        let (one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
        let wait = |events| wait_for_two([(one.as_fd(), events); 2], 0).unwrap()[0];
        assert_eq!(wait(PacketEvents::Ended), DescriptorState::default());
        other.write_all(b"abc").unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        let ended = DescriptorState { has_ended: true, ..DescriptorState::default() };
        assert_eq!(wait(PacketEvents::Ended), ended);
        let readable = DescriptorState { is_ready: true, ..ended };
        assert_eq!(wait(PacketEvents::ReadableOrEnded), readable);
        one.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(wait(PacketEvents::None).is_hung_up);
    }

    #[test]
    fn the_end_of_the_reader_is_noticed() {
        let ((_reader, full), (other, writer)) =
            (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        drop(other);
        let states = wait_for_two(
            [(full.as_fd(), PacketEvents::None), (writer.as_fd(), PacketEvents::None)],
            60_000,
        );
        assert!(!states.unwrap()[0].is_gone && states.unwrap()[1].is_gone);
    }
}
