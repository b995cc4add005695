//! Readiness by poll(2) and select(2). Each wait passes all awaited descriptors to the kernel and
//! then scans the result.
//!
//! Both are level-triggered: every wait reports everything that is ready.

use std::ffi::{c_int, c_ulong};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use rustix::event::epoll::EventFlags;

use crate::clock::timespec;
use crate::{Readiness, Result, last_error};

/// A descriptor and the readiness to wait for.
#[derive(Clone, Copy, Debug)]
pub struct Interest<'a> {
    /// The descriptor. It occurs at most once in a set.
    pub fd: BorrowedFd<'a>,
    /// A number of the caller's choice, returned with the result.
    pub data: u64,
    /// Whether to wait for bytes, a connection, urgent data, the end of the stream, or an error.
    pub readable: bool,
    /// Whether to wait for room to write, or an error.
    pub writable: bool,
}

/// The memory of poll(2) or select(2): the arguments of a wait, and then its result.
pub trait LevelSet: Default {
    /// Waits until a descriptor of `interests` is ready, for at most `wait_max` (`None`: no bound).
    ///
    /// # Errors
    /// EINTR; ENOMEM; EINVAL if there are more descriptors than the process may have open. The
    /// result is then empty.
    fn wait<'a>(
        &mut self,
        interests: impl Iterator<Item = Interest<'a>>,
        wait_max: Option<Duration>,
    ) -> Result<()>;
    /// Returns the next result of the last wait: the number of a descriptor, and its readiness.
    fn next_ready(&mut self) -> Option<(u64, Readiness)>;
}

/// The descriptors of poll(2), and the result of its last wait.
#[derive(Debug, Default)]
pub struct PollSet {
    entries: Vec<libc::pollfd>,
    /// The numbers (`Interest::data`) of `entries`, in the same order.
    data: Vec<u64>,
    /// Number of entries that were scanned: `scanned <= entries.len()`.
    scanned: usize,
    /// Number of ready entries that were not scanned yet.
    left: usize,
}

impl LevelSet for PollSet {
    fn wait<'a>(
        &mut self,
        interests: impl Iterator<Item = Interest<'a>>,
        wait_max: Option<Duration>,
    ) -> Result<()> {
        self.entries.clear();
        self.data.clear();
        (self.scanned, self.left) = (0, 0);
        for Interest { fd, data, readable, writable } in interests {
            let read_events = if readable { POLL_READABLE } else { 0 };
            let write_events = if writable { libc::POLLOUT } else { 0 };
            let events = read_events | write_events;
            self.entries.push(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 });
            self.data.push(data);
        }
        let timeout = wait_max.map(timespec);
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = self.entries.len() as libc::nfds_t;
        // SAFETY: the entries are exclusively ours, and `count` is their number; the timeout, if
        // there is one, and the descriptors, which are borrowed for `'a`, outlive the call.
        let found = unsafe { libc::ppoll(self.entries.as_mut_ptr(), count, timeout, ptr::null()) };
        self.left = usize::try_from(found).map_err(|_| last_error())?;
        Ok(())
    }

    fn next_ready(&mut self) -> Option<(u64, Readiness)> {
        while self.left > 0 && self.scanned < self.entries.len() {
            let events = self.entries[self.scanned].revents;
            self.scanned += 1;
            if events != 0 {
                assert_eq!(events & libc::POLLNVAL, 0, "a borrowed descriptor is open");
                self.left -= 1;
                let readiness = Readiness::from_bits(u32::from(events.cast_unsigned()));
                return Some((self.data[self.scanned - 1], readiness));
            }
        }
        None
    }
}

/// The three sets of select(2), and the result of its last wait. The sets grow to the largest
/// descriptor, without a limit: FD_SETSIZE bounds `fd_set` of the C library, not the kernel.
#[derive(Debug, Default)]
pub struct SelectSet {
    // The three sets have the same length, and one bit for each descriptor. A wait replaces the
    // descriptors to wait for with the ready ones.
    readable: Vec<c_ulong>,
    writable: Vec<c_ulong>,
    urgent: Vec<c_ulong>,
    /// The number (`Interest::data`) of each descriptor, at the descriptor as the index. It has one
    /// element for each bit of a set.
    data: Vec<u64>,
    /// All descriptors that the last wait found ready are below this one.
    end: usize,
    /// The scan has passed all descriptors below this one.
    scanned: usize,
}

impl LevelSet for SelectSet {
    fn wait<'a>(
        &mut self,
        interests: impl Iterator<Item = Interest<'a>>,
        wait_max: Option<Duration>,
    ) -> Result<()> {
        let end = self.set_interests(interests);
        (self.end, self.scanned) = (0, 0);
        let timeout = wait_max.map(timespec);
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count =
            c_int::try_from(end).expect("the kernel limits descriptors to less than i32::MAX");
        let [readable, writable, urgent] =
            [&mut self.readable, &mut self.writable, &mut self.urgent]
                .map(|set| set.as_mut_ptr().cast::<libc::fd_set>());
        // SAFETY: the kernel reads and writes `count` bits of each set, in words of this type. Each
        // set has at least that many, and they are exclusively ours. The timeout, if there is one,
        // and the descriptors, which are borrowed for `'a`, outlive the call.
        let found =
            unsafe { libc::pselect(count, readable, writable, urgent, timeout, ptr::null()) };
        if found < 0 {
            return Err(last_error());
        }
        // If nothing is ready, all sets are empty and need no scan.
        self.end = if found > 0 { end } else { 0 };
        Ok(())
    }

    fn next_ready(&mut self) -> Option<(u64, Readiness)> {
        while self.scanned < self.end {
            let (word, shift) = (self.scanned / WORD_BITS, self.scanned % WORD_BITS);
            let found = (self.readable[word] | self.writable[word] | self.urgent[word]) >> shift;
            if found == 0 {
                self.scanned = (word + 1) * WORD_BITS;
                continue;
            }
            let number = self.scanned + found.trailing_zeros() as usize;
            self.scanned = number + 1;
            let has = |set: &[c_ulong], flag: EventFlags| {
                let found = set[word] >> (number % WORD_BITS) & 1 == 1;
                if found { flag } else { EventFlags::empty() }
            };
            let flags = has(&self.readable, EventFlags::IN)
                | has(&self.writable, EventFlags::OUT)
                | has(&self.urgent, EventFlags::PRI);
            return Some((self.data[number], Readiness::from_bits(flags.bits())));
        }
        None
    }
}

impl SelectSet {
    /// Replaces the contents of the sets with `interests`. Returns the largest descriptor plus one.
    fn set_interests<'a>(&mut self, interests: impl Iterator<Item = Interest<'a>>) -> usize {
        let mut end = 0;
        for set in [&mut self.readable, &mut self.writable, &mut self.urgent] {
            set.fill(0);
        }
        for Interest { fd, data, readable, writable } in interests {
            let number = usize::try_from(fd.as_raw_fd()).expect("descriptors are not negative");
            let (word, bit) = (number / WORD_BITS, 1 << (number % WORD_BITS));
            if number >= self.data.len() {
                self.grow(number);
            }
            if readable {
                self.readable[word] |= bit;
                self.urgent[word] |= bit;
            }
            if writable {
                self.writable[word] |= bit;
            }
            self.data[number] = data;
            end = end.max(number + 1);
        }
        end
    }

    fn grow(&mut self, number: usize) {
        let words = (number / WORD_BITS + 1).next_power_of_two();
        for set in [&mut self.readable, &mut self.writable, &mut self.urgent] {
            set.resize(words, 0);
        }
        self.data.resize(words * WORD_BITS, 0);
    }
}

/// The events of poll(2) in the receiving direction. It always reports errors and POLLHUP.
const POLL_READABLE: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;

const WORD_BITS: usize = c_ulong::BITS as usize;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    const MINUTE: Option<Duration> = Some(Duration::from_secs(60));
    const NOW: Option<Duration> = Some(Duration::ZERO);

    /// Waits for `interests` with both calls, and returns (number, readable, writable) of the
    /// results. poll(2) reports POLLHUP even if only one direction is awaited, so the result is
    /// limited to the awaited directions.
    fn found(interests: &[Interest<'_>], wait_max: Option<Duration>) -> Vec<(u64, bool, bool)> {
        let (mut poll, mut select) = (PollSet::default(), SelectSet::default());
        let result = |(data, ready): (u64, Readiness)| {
            let interest = interests.iter().find(|it| it.data == data).unwrap();
            (
                data,
                ready.is_readable() && interest.readable,
                ready.is_writable() && interest.writable,
            )
        };
        poll.wait(interests.iter().copied(), wait_max).unwrap();
        let by_poll: Vec<_> = std::iter::from_fn(|| poll.next_ready()).map(result).collect();
        select.wait(interests.iter().copied(), wait_max).unwrap();
        let mut by_select: Vec<_> =
            std::iter::from_fn(|| select.next_ready()).map(result).collect();
        // `SelectSet` returns results in the order of descriptors. The callers pass interests in
        // the order of their numbers.
        by_select.sort_unstable();
        assert_eq!(by_poll, by_select);
        by_poll
    }

    fn interest(fd: &impl AsFd, data: u64, readable: bool, writable: bool) -> Interest<'_> {
        Interest { fd: fd.as_fd(), data, readable, writable }
    }

    #[test]
    fn each_wait_reports_all_its_ready_interests() {
        let (near, mut far) = UnixStream::pair().unwrap();
        assert!(found(&[interest(&near, 1, true, false)], NOW).is_empty());
        far.write_all(b"x").unwrap();
        for _ in 0..2 {
            let both = [interest(&near, 1, true, true), interest(&far, 2, true, false)];
            assert_eq!(found(&both, MINUTE), [(1, true, true)]);
        }
        assert_eq!(found(&[interest(&near, 1, false, true)], MINUTE), [(1, false, true)]);
        assert!(found(&[], NOW).is_empty());
    }

    #[test]
    fn a_closed_peer_is_reported_in_both_directions() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        for (receives, sends) in [(true, false), (false, true)] {
            let found = found(&[interest(&near, 7, receives, sends)], MINUTE);
            assert_eq!(found, [(7, receives, sends)]);
        }
    }

    #[test]
    fn select_has_room_for_every_descriptor() {
        crate::raise_descriptor_limit().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        // SAFETY: the call duplicates a descriptor that is open and ours.
        let high = unsafe { libc::fcntl(near.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 2000) };
        assert!(high >= 2000, "the limit of descriptors is at least 2001");
        // SAFETY: the duplicate was created just now, and nothing else owns it.
        let high = unsafe { OwnedFd::from_raw_fd(high) };
        far.write_all(b"x").unwrap();
        let mut select = SelectSet::default();
        for _ in 0..2 {
            let all = [interest(&high, 9, true, false), interest(&far, 3, true, false)];
            select.wait(all.into_iter(), MINUTE).unwrap();
            assert_eq!(select.next_ready().unwrap().0, 9);
            assert!(select.next_ready().is_none());
            select.wait([interest(&far, 3, true, false)].into_iter(), NOW).unwrap();
            assert!(select.next_ready().is_none());
        }
    }

    #[test]
    fn a_wait_does_not_end_before_its_timeout() {
        let (near, _far) = UnixStream::pair().unwrap();
        let before = std::time::Instant::now();
        assert!(
            found(&[interest(&near, 1, true, false)], Some(Duration::from_millis(3))).is_empty()
        );
        assert!(before.elapsed() >= Duration::from_millis(6));
    }
}
