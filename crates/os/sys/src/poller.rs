//! Readiness: epoll instances, and the eventfds and timers that wake them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::Result;

/// An epoll instance (epoll(7)). Each registration has a number of the caller's choice. It ends by
/// itself when the last descriptor of the open file is closed.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// Creates an instance without registrations.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Self> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Registers a connection for edges of readability, writability, urgent data, and the end of
    /// either direction.
    ///
    /// # Errors
    /// ENOMEM; ENOSPC if the user has too many registrations (/proc/sys/fs/epoll).
    pub fn add_connection(&self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        let read = EventFlags::IN | EventFlags::PRI | EventFlags::RDHUP;
        let flags = read | EventFlags::OUT | EventFlags::ET;
        epoll::add(&self.0, fd, EventData::new_u64(data), flags)
    }

    /// Registers a listener or an eventfd for edges of readability. If several instances have
    /// registered the same listener, only one or a few of them are woken (EPOLLEXCLUSIVE, since
    /// Linux 4.5).
    ///
    /// # Errors
    /// As [`Poller::add_connection`].
    pub fn add_listener(&self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE;
        epoll::add(&self.0, fd, EventData::new_u64(data), flags)
    }

    /// Ends a registration. Needed if the open file stays open elsewhere.
    ///
    /// # Errors
    /// ENOENT if it is not registered.
    pub fn delete(&self, fd: BorrowedFd<'_>) -> Result<()> {
        epoll::delete(&self.0, fd)
    }

    /// Waits until a descriptor is ready, for at most `wait_ms_max` (`None`: no bound), and
    /// replaces the contents of `events` with the result.
    ///
    /// # Errors
    /// EINTR; `events` is then empty.
    pub fn wait(&self, events: &mut Events, wait_ms_max: Option<u32>) -> Result<()> {
        let timeout = wait_ms_max.map(|ms| Timespec {
            tv_sec: (ms / 1000).into(),
            tv_nsec: (ms % 1000 * 1_000_000).into(),
        });
        (events.filled, events.returned) = (0, 0);
        events.filled = epoll::wait(&self.0, &mut events.block[..], timeout.as_ref())?;
        Ok(())
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Space for the result of one wait.
pub struct Events {
    block: Box<[epoll::Event]>,
    /// Number of events that the last wait found: `filled <= block.len()`.
    filled: usize,
    /// Number of these that were returned since: `returned <= filled`.
    returned: usize,
}

impl Events {
    /// Creates space for `count` events. Further ones are returned by the next wait.
    pub fn new(count: usize) -> Self {
        let empty = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Self { block: vec![empty; count].into_boxed_slice(), filled: 0, returned: 0 }
    }

    /// Returns whether the last wait filled the space, so that there may be more events.
    pub fn is_full(&self) -> bool {
        self.filled == self.block.len()
    }
}

/// Iterates over the result of the last wait: the number given at registration, and the readiness.
impl Iterator for Events {
    type Item = (u64, Readiness);

    fn next(&mut self) -> Option<(u64, Readiness)> {
        let event = self.block[..self.filled].get(self.returned)?;
        self.returned += 1;
        Some((event.data.u64(), Readiness(event.flags)))
    }
}

/// The readiness of a descriptor, in the terms of epoll_ctl(2).
#[derive(Clone, Copy, Debug)]
pub struct Readiness(EventFlags);

impl Readiness {
    /// Converts the bits that poll(2), epoll(7) and io_uring(7) share.
    pub fn from_bits(events: u32) -> Self {
        Self(EventFlags::from_bits_retain(events))
    }

    /// Returns whether a read would return at once: with bytes, a connection, the end of the
    /// stream, or an error.
    pub fn is_readable(self) -> bool {
        self.0.intersects(EventFlags::IN) || self.must_drain()
    }

    /// Returns whether a write would return at once: there is room, or it fails.
    pub fn is_writable(self) -> bool {
        self.0.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns whether an error is pending.
    pub fn has_error(self) -> bool {
        self.0.intersects(EventFlags::ERR)
    }

    /// Returns whether urgent data is pending, or was until just now. A splice stops before it as
    /// if there were nothing to read.
    pub fn has_urgent_data(self) -> bool {
        self.0.intersects(EventFlags::PRI)
    }

    /// Returns whether both directions have ended.
    pub fn is_hung_up(self) -> bool {
        self.0.intersects(EventFlags::HUP)
    }

    /// Returns whether the caller has to read until EAGAIN. At the end of the stream, a failure, or
    /// urgent data, a read may return less than there is, and no further event announces the rest.
    pub fn must_drain(self) -> bool {
        let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        self.0.intersects(ends) || (self.0.intersects(EventFlags::PRI) && !self.is_hint())
    }

    /// Returns whether the event is a hint: bytes arrived, perhaps urgent ones, but the kernel did
    /// not check the state of the socket. io_uring creates such an event from the bits of a
    /// wake-up, if that was the only wake-up since the last completion of the poll request. A
    /// wake-up for arriving bytes has the bits of every kind of readability (Linux 6.18,
    /// `sock_def_readable`). One of them is the band bit, which a check of a socket never sets, so
    /// it identifies hints.
    ///
    /// Urgent bytes cause a wake-up before the wake-up for the bytes around them. So if two hints
    /// arrive without a receive in between, there may be urgent bytes, and the caller has to act as
    /// for [`Readiness::must_drain`].
    pub fn is_hint(self) -> bool {
        self.0.intersects(EventFlags::RDBAND)
    }
}

/// A counter that ends a wait (eventfd(2)). When registered for edges it need not be read, since
/// every write is an edge.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Creates a counter at zero.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Adds one. Never blocks: the counter would only be full after 584 years of one signal each
    /// nanosecond.
    pub fn signal(&self) {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &1u64.to_ne_bytes())) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => panic!("write to an eventfd: {error}"),
        }
    }

    /// Resets the counter, so that it is no longer readable. Needed only by level-triggered waits.
    /// Never blocks.
    pub fn clear(&self) {
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut [0; 8])) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => panic!("read from an eventfd: {error}"),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A timer that wakes an epoll instance (timerfd_create(2)). When registered for edges it need not
/// be read, since every expiration is an edge.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map(Self)
    }

    /// Sets the timer to `ms` (at least 1) from now. This replaces an earlier setting.
    pub fn set(&self, ms: u32) {
        self.set_after(Duration::from_millis(ms.into()));
    }

    /// Like [`Timer::set`], for a time of at least 1 ns. The kernel keeps it to within some tens of
    /// microseconds if the machine has an idle processor. A wait with a bound has a resolution of a
    /// millisecond.
    pub fn set_after(&self, wait: Duration) {
        assert!(!wait.is_zero(), "a time of 0 disarms a timer");
        let tv_sec = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec, tv_nsec: wait.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        let set = rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
        set.expect("the descriptor is a timer and the time is valid");
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_of_an_unread_eventfd_is_an_edge() {
        let (poller, eventfd) = (Poller::new().unwrap(), EventFd::new().unwrap());
        poller.add_listener(eventfd.as_fd(), 7).unwrap();
        let mut events = Events::new(4);
        for _ in 0..3 {
            eventfd.signal();
            poller.wait(&mut events, Some(10_000)).unwrap();
            let (data, readiness) = events.next().unwrap();
            assert!(data == 7 && readiness.is_readable() && !readiness.must_drain());
            assert!(events.next().is_none());
            poller.wait(&mut events, Some(0)).unwrap();
            assert!(events.next().is_none());
        }
    }

    #[test]
    fn every_expiration_of_an_unread_timer_is_an_edge() {
        let (poller, timer) = (Poller::new().unwrap(), Timer::new().unwrap());
        poller.add_listener(timer.as_fd(), 7).unwrap();
        let mut events = Events::new(4);
        for round in 0..3 {
            if round == 0 {
                timer.set(1);
            } else {
                timer.set_after(Duration::from_nanos(1));
            }
            poller.wait(&mut events, Some(10_000)).unwrap();
            assert!(events.next().is_some() && events.next().is_none());
            poller.wait(&mut events, Some(0)).unwrap();
            assert!(events.next().is_none());
        }
    }
}
