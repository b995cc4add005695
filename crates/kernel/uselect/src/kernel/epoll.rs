//! epoll(7): as ppoll(), not by the C library.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use super::{Errno, Result, SignalSet, Timeout, borrow, result};
use crate::bits;
use crate::hidden::Hidden;

/// An epoll instance.
pub(crate) enum Epoll {
    /// Closed on exec.
    Own(Hidden),
    /// By its number: whoever lends it keeps it open.
    Lent(i32),
}

/// `struct epoll_event`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct EpollEvent(libc::epoll_event);

impl Default for EpollEvent {
    fn default() -> Self {
        Self(libc::epoll_event { events: 0, u64: 0 })
    }
}

impl EpollEvent {
    pub(crate) fn data(&self) -> u64 {
        self.0.u64
    }

    pub(crate) fn events(&self) -> u32 {
        self.0.events
    }
}

impl Epoll {
    pub(crate) fn new() -> Result<Self> {
        let flags = rustix::event::epoll::CreateFlags::CLOEXEC;
        Ok(Self::Own(Hidden::of(rustix::event::epoll::create(flags))?))
    }

    pub(crate) fn number(&self) -> i32 {
        match self {
            Self::Own(fd) => fd.as_raw_fd(),
            Self::Lent(number) => *number,
        }
    }

    pub(crate) fn add(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, data)
    }

    /// To be told of once, whether it was added before or not.
    pub(crate) fn add_once(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        let events = events | bits::ONCE;
        match self.modify(fd, events, data) {
            Err(Errno::NOENT) => self.add(fd, events, data),
            modified => modified,
        }
    }

    pub(crate) fn modify(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, data)
    }

    pub(crate) fn delete(&self, fd: i32) -> Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// epoll_ctl(2).
    fn control(&self, operation: i32, fd: i32, events: u32, data: u64) -> Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        let [epoll, operation, fd] = [self.number(), operation, fd].map(libc::c_long::from);
        // SAFETY: the event outlives the call; descriptors that are not open are errors.
        let returned =
            unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, &raw mut event) };
        result(returned).map(|_| ())
    }

    /// epoll_pwait2(2), since Linux 5.11: how many of `events` were filled in.
    pub(crate) fn wait(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let mut timeout = Timeout::new(timeout);
        let [epoll, count] = [i64::from(self.number()), events.len() as libc::c_long];
        // SAFETY: an `EpollEvent` is `struct epoll_event`, and the kernel gets as many as there are;
        // time and mask are null or outlive the call, and the mask is as long as is said.
        result(unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events.as_mut_ptr(),
                count,
                timeout.address(),
                mask.map_or(ptr::null(), ptr::from_ref),
                size_of::<SignalSet>(),
            )
        })
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrow(self.number()).expect("it is an open descriptor")
    }
}
