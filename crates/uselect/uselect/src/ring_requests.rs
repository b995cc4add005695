//! `Rings`: what the daemon is asked for by threads that sleep, one after the other.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::layout::SLEEPERS;
use crate::limits::RING_RETRY_TIME;
use crate::pages::WakeRing;
use crate::registration::{receive_ring, request_ring};

/// ```text
///            asks                  a ring, or a refusal
///  nothing ─────────> asked for ─────────────────────────> nothing
///                      └── no answer in time ──> owed ───> nothing
/// ```
///
/// What is owed is taken before anything else is asked for, or answers were mistaken for each other.
pub(crate) struct RingRequests {
    /// That were given, in the order of their sleepers.
    count: usize,
    is_outstanding: bool,
    /// Until then the daemon is left alone.
    retry_at: Option<Instant>,
    /// How long an answer is waited for.
    reply_time_max: Duration,
}

impl RingRequests {
    /// There is the first, which comes with the registration.
    pub(crate) fn new(wait: Duration) -> Self {
        Self { count: 1, is_outstanding: false, retry_at: None, reply_time_max: wait }
    }

    /// No more are given.
    pub(crate) fn has_all(&self) -> bool {
        self.count == SLEEPERS
    }

    /// The next one and its number, if it can be had now.
    pub(crate) fn request_next(
        &mut self,
        daemon: BorrowedFd<'_>,
        now: Instant,
    ) -> Option<(usize, WakeRing)> {
        let is_early = self.retry_at.is_some_and(|at| now < at);
        if self.has_all() || is_early {
            return None;
        }
        let taken = match self.is_outstanding {
            true => receive_ring(daemon, Duration::ZERO),
            false => request_ring(daemon).and_then(|()| receive_ring(daemon, self.reply_time_max)),
        };
        self.is_outstanding = matches!(taken, Err(Error::NoReply));
        // One that is lost counts: the daemon has told the programs that it is its sleeper's.
        let number = self.count;
        self.count += usize::from(taken.is_ok());
        if let Ok(Some(ring)) = taken {
            return Some((number, ring));
        }
        self.retry_at = Some(now + RING_RETRY_TIME);
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
    use crate::registration::{RING_REQUEST, RegistrationReply};
    use rustix::param::page_size;

    const WAIT: Duration = Duration::from_millis(20);

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, daemon) = UnixStream::pair().unwrap();
        daemon.set_nonblocking(true).unwrap();
        (ours, daemon)
    }

    fn answer(daemon: &UnixStream, answer: RegistrationReply) {
        let ring = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&ring, 3 * page_size() as u64).unwrap();
        answer_with(daemon, answer, ring.as_fd());
    }

    fn answer_with(daemon: &UnixStream, answer: RegistrationReply, ring: BorrowedFd<'_>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rings = [ring];
        if answer == RegistrationReply::Granted {
            assert!(control.push(SendAncillaryMessage::ScmRights(&rings)));
        }
        let byte = [answer as u8];
        sendmsg(daemon, &[IoSlice::new(&byte)], &mut control, SendFlags::empty()).unwrap();
    }

    /// How often the daemon was asked.
    fn asked(mut daemon: &UnixStream) -> usize {
        let mut bytes = [0; 8];
        let count = daemon.read(&mut bytes).unwrap_or(0);
        assert!(bytes[..count].iter().all(|byte| *byte == RING_REQUEST));
        count
    }

    #[test]
    fn what_failed_is_not_asked_for_at_once() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = RingRequests::new(WAIT);
        answer(&daemon, RegistrationReply::Failed);
        assert!(rings.request_next(ours.as_fd(), now).is_none());
        assert!(rings.request_next(ours.as_fd(), now + RING_RETRY_TIME / 2).is_none());
        assert_eq!(asked(&daemon), 1);
        answer(&daemon, RegistrationReply::Granted);
        let next = rings.request_next(ours.as_fd(), now + RING_RETRY_TIME);
        assert_eq!((next.map(|(number, _)| number), asked(&daemon)), (Some(1), 1));
    }

    #[test]
    fn the_number_of_a_ring_that_was_lost_is_nobodys() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = RingRequests::new(WAIT);
        // No connection can be mapped.
        answer_with(&daemon, RegistrationReply::Granted, daemon.as_fd());
        assert!(rings.request_next(ours.as_fd(), now).is_none());
        answer(&daemon, RegistrationReply::Granted);
        let next = rings.request_next(ours.as_fd(), now + RING_RETRY_TIME);
        assert_eq!((next.map(|(number, _)| number), asked(&daemon)), (Some(2), 2));
    }

    #[test]
    fn an_answer_that_is_late_is_taken_and_not_asked_for_again() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = RingRequests::new(WAIT);
        assert!(rings.request_next(ours.as_fd(), now).is_none());
        assert!(rings.request_next(ours.as_fd(), now + RING_RETRY_TIME).is_none());
        answer(&daemon, RegistrationReply::Granted);
        let next = rings.request_next(ours.as_fd(), now + 2 * RING_RETRY_TIME);
        assert_eq!((next.map(|(number, _)| number), asked(&daemon)), (Some(1), 1));
        answer(&daemon, RegistrationReply::Granted);
        let next = rings.request_next(ours.as_fd(), now + 2 * RING_RETRY_TIME);
        assert_eq!((next.map(|(number, _)| number), asked(&daemon)), (Some(2), 1));
    }
}
