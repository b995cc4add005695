//! Readiness: epoll instances, and the eventfds and timers that wake them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::Result;

/// An epoll instance (epoll(7)). Registrations carry a number of the caller's choice, and end by
/// themselves once the last descriptor of the open file is closed.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// An instance with nothing registered.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Self> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Registers a connection for edges of readability, room to write, urgent data, and either
    /// side's end.
    ///
    /// # Errors
    /// ENOMEM; ENOSPC when the user has too many registrations (/proc/sys/fs/epoll).
    pub fn add_connection(&self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        let read = EventFlags::IN | EventFlags::PRI | EventFlags::RDHUP;
        let flags = read | EventFlags::OUT | EventFlags::ET;
        epoll::add(&self.0, fd, EventData::new_u64(data), flags)
    }

    /// Registers a listener, or an eventfd, for edges of readability. Of several instances that
    /// have the same listener only one or few are woken (EPOLLEXCLUSIVE, since Linux 4.5).
    ///
    /// # Errors
    /// As [`Poller::add_connection`].
    pub fn add_listener(&self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE;
        epoll::add(&self.0, fd, EventData::new_u64(data), flags)
    }

    /// Ends a registration; needed when the open file lives on elsewhere.
    ///
    /// # Errors
    /// ENOENT when it is not registered.
    pub fn delete(&self, fd: BorrowedFd<'_>) -> Result<()> {
        epoll::delete(&self.0, fd)
    }

    /// Waits until something is ready or, at most, `wait_ms_max` (`None`: for ever), and puts what
    /// is ready in the place of what `events` held.
    ///
    /// # Errors
    /// EINTR; `events` is empty then.
    pub fn wait(&self, events: &mut Events, wait_ms_max: Option<u32>) -> Result<()> {
        let timeout = wait_ms_max.map(|ms| Timespec {
            tv_sec: (ms / 1000).into(),
            tv_nsec: (ms % 1000 * 1_000_000).into(),
        });
        (events.filled, events.given) = (0, 0);
        events.filled = epoll::wait(&self.0, &mut events.block[..], timeout.as_ref())?;
        Ok(())
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Room for what one wait finds ready.
pub struct Events {
    block: Box<[epoll::Event]>,
    /// `given <= filled <= block.len()`.
    filled: usize,
    given: usize,
}

impl Events {
    /// Room for `count` events; what does not fit is found by the next wait.
    pub fn new(count: usize) -> Self {
        let empty = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Self { block: vec![empty; count].into_boxed_slice(), filled: 0, given: 0 }
    }

    /// Whether the last wait found as many as there is room for: there may be more.
    pub fn is_full(&self) -> bool {
        self.filled == self.block.len()
    }
}

/// What the last wait found: the number given at the registration, and what became ready.
impl Iterator for Events {
    type Item = (u64, Readiness);

    fn next(&mut self) -> Option<(u64, Readiness)> {
        let event = self.block[..self.filled].get(self.given)?;
        self.given += 1;
        Some((event.data.u64(), Readiness(event.flags)))
    }
}

/// What became ready, as epoll_ctl(2) names it.
#[derive(Clone, Copy, Debug)]
pub struct Readiness(EventFlags);

impl Readiness {
    /// From the bits that poll(2), epoll(7) and io_uring(7) share.
    pub fn from_bits(events: u32) -> Self {
        Self(EventFlags::from_bits_retain(events))
    }

    /// A read would not wait: for bytes, a connection, the end of the stream, or an error.
    pub fn is_readable(self) -> bool {
        self.0.intersects(EventFlags::IN) || self.must_drain()
    }

    /// A write would not wait: for room, or because it fails.
    pub fn is_writable(self) -> bool {
        self.0.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// An error is there to be told.
    pub fn has_error(self) -> bool {
        self.0.intersects(EventFlags::ERR)
    }

    /// Urgent data is there, or was just now: a splice stops at it as if nothing had come.
    pub fn has_urgent_data(self) -> bool {
        self.0.intersects(EventFlags::PRI)
    }

    /// Nothing moves any more in either direction.
    pub fn is_hung_up(self) -> bool {
        self.0.intersects(EventFlags::HUP)
    }

    /// Reading has to go on until it finds nothing (EAGAIN). The end of the stream, a failure, or
    /// urgent data is there, at which a read stops short of bytes that no further event announces.
    pub fn must_drain(self) -> bool {
        let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        self.0.intersects(ends) || (self.0.intersects(EventFlags::PRI) && !self.is_hint())
    }

    /// Bytes came, perhaps urgent ones: the state of the socket was not looked at. A ring passes on
    /// what a wake says that was the only one since its last completion, and what says that bytes
    /// came says that bytes of every kind may have come (Linux 6.18, `sock_def_readable`). No look
    /// at a socket finds the band that this is told by.
    ///
    /// Urgent bytes come with a wake of their own before that of the bytes around them, so two
    /// guesses in a row, with no receive between, are [`Readiness::must_drain`].
    pub fn is_hint(self) -> bool {
        self.0.intersects(EventFlags::RDBAND)
    }
}

/// A counter that ends a wait (eventfd(2)). Registered for edges it need not be
/// read: every write is an edge.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A counter at zero.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Adds one. Never blocks: the counter would be full after 584 years of nanoseconds.
    pub fn signal(&self) {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &1u64.to_ne_bytes())) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => panic!("an eventfd takes a number: {error}"),
        }
    }

    /// Takes what was added, so that it is not readable any more; needed only where levels are
    /// told. Never blocks.
    pub fn clear(&self) {
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut [0; 8])) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => panic!("an eventfd gives its number: {error}"),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A clock that makes an epoll instance return (timerfd_create(2)). Registered for edges it need
/// not be read: every moment that it was set to is an edge.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map(Self)
    }

    /// Sets it to `ms` (at least 1) from now, instead of what it was set to.
    pub fn set(&self, ms: u32) {
        assert!(ms > 0, "no time at all unsets a timer");
        let it_value =
            Timespec { tv_sec: i64::from(ms / 1000), tv_nsec: i64::from(ms % 1000) * 1_000_000 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        let set = rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
        set.expect("it is a timer, and the time is one");
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
    fn every_moment_of_an_unread_timer_is_an_edge() {
        let (poller, timer) = (Poller::new().unwrap(), Timer::new().unwrap());
        poller.add_listener(timer.as_fd(), 7).unwrap();
        let mut events = Events::new(4);
        for _ in 0..3 {
            timer.set(1);
            poller.wait(&mut events, Some(10_000)).unwrap();
            assert!(events.next().is_some() && events.next().is_none());
            poller.wait(&mut events, Some(0)).unwrap();
            assert!(events.next().is_none());
        }
    }
}
