//! `RingRequests`: requests a ring for each new sleeper, one at a time.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::layout::SLEEPERS;
use crate::limits::RING_RETRY_TIME;
use crate::pages::WakeRing;
use crate::registration::{receive_ring, request_ring};

/// The state of the requests.
///
/// ```text
///           request                 a ring, or a refusal
///  idle ─────────────> requested ─────────────────────────> idle
///                          └── no reply in time ──> outstanding ──> idle
/// ```
///
/// An outstanding reply is received before the next request is sent. Otherwise replies would be
/// assigned to the wrong requests.
pub(crate) struct RingRequests {
    /// How many rings the daemon has sent; also the number of the next sleeper.
    count: usize,
    is_outstanding: bool,
    /// No ring is requested before this time.
    retry_at: Option<Instant>,
    /// How long to wait for a reply.
    reply_time_max: Duration,
}

impl RingRequests {
    /// Starts with one ring, which came with the registration.
    pub(crate) fn new(wait: Duration) -> Self {
        Self { count: 1, is_outstanding: false, retry_at: None, reply_time_max: wait }
    }

    /// Returns whether the daemon has sent all rings.
    pub(crate) fn has_all(&self) -> bool {
        self.count == SLEEPERS
    }

    /// Requests the next ring. Returns it with its number, or `None` if it is not available now.
    pub(crate) fn request_next(
        &mut self,
        daemon: BorrowedFd<'_>,
        now: Instant,
    ) -> Option<(usize, WakeRing)> {
        let is_early = self.retry_at.is_some_and(|at| now < at);
        if self.has_all() || is_early {
            return None;
        }
        let received = match self.is_outstanding {
            true => receive_ring(daemon, Duration::ZERO),
            false => request_ring(daemon).and_then(|()| receive_ring(daemon, self.reply_time_max)),
        };
        self.is_outstanding = matches!(received, Err(Error::NoReply));
        // A ring that could not be mapped counts too: the eBPF programs already use it for this
        // number.
        let number = self.count;
        self.count += usize::from(received.is_ok());
        if let Ok(Some(ring)) = received {
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

    fn reply(daemon: &UnixStream, reply: RegistrationReply) {
        let ring = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&ring, 3 * page_size() as u64).unwrap();
        reply_with(daemon, reply, ring.as_fd());
    }

    fn reply_with(daemon: &UnixStream, reply: RegistrationReply, ring: BorrowedFd<'_>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rings = [ring];
        if reply == RegistrationReply::Granted {
            assert!(control.push(SendAncillaryMessage::ScmRights(&rings)));
        }
        let byte = [reply as u8];
        sendmsg(daemon, &[IoSlice::new(&byte)], &mut control, SendFlags::empty()).unwrap();
    }

    /// Returns how many requests the daemon received.
    fn count_requests(mut daemon: &UnixStream) -> usize {
        let mut bytes = [0; 8];
        let count = daemon.read(&mut bytes).unwrap_or(0);
        assert!(bytes[..count].iter().all(|byte| *byte == RING_REQUEST));
        count
    }

    #[test]
    fn a_failed_request_is_not_repeated_at_once() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = RingRequests::new(WAIT);
        reply(&daemon, RegistrationReply::Failed);
        assert!(rings.request_next(ours.as_fd(), now).is_none());
        assert!(rings.request_next(ours.as_fd(), now + RING_RETRY_TIME / 2).is_none());
        assert_eq!(count_requests(&daemon), 1);
        reply(&daemon, RegistrationReply::Granted);
        let next = rings.request_next(ours.as_fd(), now + RING_RETRY_TIME);
        assert_eq!((next.map(|(number, _)| number), count_requests(&daemon)), (Some(1), 1));
    }

    #[test]
    fn the_number_of_a_lost_ring_stays_unused() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = RingRequests::new(WAIT);
        // A socket cannot be mapped.
        reply_with(&daemon, RegistrationReply::Granted, daemon.as_fd());
        assert!(rings.request_next(ours.as_fd(), now).is_none());
        reply(&daemon, RegistrationReply::Granted);
        let next = rings.request_next(ours.as_fd(), now + RING_RETRY_TIME);
        assert_eq!((next.map(|(number, _)| number), count_requests(&daemon)), (Some(2), 2));
    }

    #[test]
    fn a_late_reply_is_received_without_a_new_request() {
        let ((ours, daemon), now) = (pair(), Instant::now());
        let mut rings = RingRequests::new(WAIT);
        assert!(rings.request_next(ours.as_fd(), now).is_none());
        assert!(rings.request_next(ours.as_fd(), now + RING_RETRY_TIME).is_none());
        reply(&daemon, RegistrationReply::Granted);
        let next = rings.request_next(ours.as_fd(), now + 2 * RING_RETRY_TIME);
        assert_eq!((next.map(|(number, _)| number), count_requests(&daemon)), (Some(1), 1));
        reply(&daemon, RegistrationReply::Granted);
        let next = rings.request_next(ours.as_fd(), now + 2 * RING_RETRY_TIME);
        assert_eq!((next.map(|(number, _)| number), count_requests(&daemon)), (Some(2), 1));
    }
}
