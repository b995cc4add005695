//! `Rings`: what the daemon is asked for by threads that sleep, one after the other.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::attach::{ask_for_ring, take_ring};
use crate::error::Error;
use crate::layout::SLEEPERS;
use crate::limits::RING_AGAIN;
use crate::pages::Ring;

/// ```text
///            asks                  a ring, or a refusal
///  nothing ─────────> asked for ─────────────────────────> nothing
///                      └── no answer in time ──> owed ───> nothing
/// ```
///
/// What is owed is taken before anything else is asked for, or answers were mistaken for each other.
pub(crate) struct Rings {
    /// That were given, in the order of their sleepers.
    count: usize,
    is_owed: bool,
    /// Until then the daemon is left alone.
    again_at: Option<Instant>,
    /// How long an answer is waited for.
    wait: Duration,
}

impl Rings {
    /// There is the first, which comes with the registration.
    pub(crate) fn new(wait: Duration) -> Self {
        Self { count: 1, is_owed: false, again_at: None, wait }
    }

    /// No more are given.
    pub(crate) fn are_all(&self) -> bool {
        self.count == SLEEPERS
    }

    /// The next one and its number, if it can be had now.
    pub(crate) fn next(&mut self, daemon: BorrowedFd<'_>, now: Instant) -> Option<(usize, Ring)> {
        let is_early = self.again_at.is_some_and(|at| now < at);
        if self.are_all() || is_early {
            return None;
        }
        let taken = match self.is_owed {
            true => take_ring(daemon, Duration::ZERO),
            false => ask_for_ring(daemon).and_then(|()| take_ring(daemon, self.wait)),
        };
        self.is_owed = matches!(taken, Err(Error::NoAnswer));
        // One that is lost counts: the daemon has told the programs that it is its sleeper's.
        let number = self.count;
        self.count += usize::from(taken.is_ok());
        if let Ok(Some(ring)) = taken {
            return Some((number, ring));
        }
        self.again_at = Some(now + RING_AGAIN);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;
    use crate::attach::{Answer, SLEEPER};
    use rustix::param::page_size;

    const WAIT: Duration = Duration::from_millis(20);

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, daemon) = UnixStream::pair().unwrap();
        daemon.set_nonblocking(true).unwrap();
        (ours, daemon)
    }

    fn answer(daemon: &UnixStream, answer: Answer) {
        let ring = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&ring, 3 * page_size() as u64).unwrap();
        answer_with(daemon, answer, ring.as_fd());
    }

    fn answer_with(daemon: &UnixStream, answer: Answer, ring: BorrowedFd<'_>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rings = [ring];
        if answer == Answer::Granted {
            assert!(control.push(SendAncillaryMessage::ScmRights(&rings)));
        }
        let byte = [answer as u8];
        sendmsg(daemon, &[IoSlice::new(&byte)], &mut control, SendFlags::empty()).unwrap();
    }

    /// How often the daemon was asked.
    fn asked(mut daemon: &UnixStream) -> usize {
        let mut bytes = [0; 8];
        let count = daemon.read(&mut bytes).unwrap_or(0);
        assert!(bytes[..count].iter().all(|byte| *byte == SLEEPER));
        count
    }

    #[test]
    fn what_failed_is_not_asked_for_at_once() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = Rings::new(WAIT);
        answer(&daemon, Answer::Failed);
        assert!(rings.next(ours.as_fd(), now).is_none());
        assert!(rings.next(ours.as_fd(), now + RING_AGAIN / 2).is_none());
        assert_eq!(asked(&daemon), 1);
        answer(&daemon, Answer::Granted);
        let next = rings.next(ours.as_fd(), now + RING_AGAIN);
        assert_eq!((next.map(|(number, _)| number), asked(&daemon)), (Some(1), 1));
    }

    #[test]
    fn the_number_of_a_ring_that_was_lost_is_nobodys() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = Rings::new(WAIT);
        // No connection can be mapped.
        answer_with(&daemon, Answer::Granted, daemon.as_fd());
        assert!(rings.next(ours.as_fd(), now).is_none());
        answer(&daemon, Answer::Granted);
        let next = rings.next(ours.as_fd(), now + RING_AGAIN);
        assert_eq!((next.map(|(number, _)| number), asked(&daemon)), (Some(2), 2));
    }

    #[test]
    fn an_answer_that_is_late_is_taken_and_not_asked_for_again() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = Rings::new(WAIT);
        assert!(rings.next(ours.as_fd(), now).is_none());
        assert!(rings.next(ours.as_fd(), now + RING_AGAIN).is_none());
        answer(&daemon, Answer::Granted);
        let next = rings.next(ours.as_fd(), now + 2 * RING_AGAIN);
        assert_eq!((next.map(|(number, _)| number), asked(&daemon)), (Some(1), 1));
        answer(&daemon, Answer::Granted);
        let next = rings.next(ours.as_fd(), now + 2 * RING_AGAIN);
        assert_eq!((next.map(|(number, _)| number), asked(&daemon)), (Some(2), 1));
    }
}
