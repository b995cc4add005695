//! epoll(7), called directly like `ppoll`, not through the C library.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Errno, KernelTimespec, Result, SignalSet, borrow_fd, result};
use crate::bits;
use crate::internal_fd::InternalFd;

/// An epoll instance.
pub(crate) enum Epoll {
    /// An instance of the library, with close-on-exec.
    Owned(InternalFd),
    /// An instance of the program, by its number. The program keeps it open.
    Borrowed(i32),
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
        Ok(Self::Owned(InternalFd::from_result(rustix::event::epoll::create(flags))?))
    }

    pub(crate) fn raw_fd(&self) -> i32 {
        match self {
            Self::Owned(fd) => fd.as_raw_fd(),
            Self::Borrowed(number) => *number,
        }
    }

    pub(crate) fn add(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, data)
    }

    /// Adds a descriptor with EPOLLONESHOT, or re-enables it if it is in the instance already.
    pub(crate) fn add_oneshot(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        let events = events | bits::ONESHOT;
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

    /// Calls epoll_ctl(2).
    fn control(&self, operation: i32, fd: i32, events: u32, data: u64) -> Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        let [epoll, operation, fd] = [self.raw_fd(), operation, fd].map(libc::c_long::from);
        // SAFETY: the event outlives the call; the kernel refuses descriptors that are not open.
        let returned =
            unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, &raw mut event) };
        result(returned).map(|_| ())
    }

    /// Waits, and returns how many of `events` were stored. Uses epoll_pwait2(2), or epoll_pwait(2)
    /// on kernels without it, with the timeout rounded up to milliseconds.
    pub(crate) fn wait(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        if !LACKS_PWAIT2.load(Ordering::Relaxed) {
            match self.pwait2(events, timeout, mask) {
                Err(Errno::NOSYS) => LACKS_PWAIT2.store(true, Ordering::Relaxed),
                found => return found,
            }
        }
        self.pwait(events, timeout, mask)
    }

    fn pwait2(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let mut timeout = KernelTimespec::new(timeout);
        let [epoll, count] = [i64::from(self.raw_fd()), events.len() as libc::c_long];
        // SAFETY: `EpollEvent` has the layout of `struct epoll_event`, and the length is passed.
        // Timeout and mask are null or outlive the call, and the size of the mask is passed.
        result(unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events.as_mut_ptr(),
                count,
                timeout.as_mut_ptr(),
                mask.map_or(ptr::null(), ptr::from_ref),
                size_of::<SignalSet>(),
            )
        })
    }

    fn pwait(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let [epoll, count] = [i64::from(self.raw_fd()), events.len() as libc::c_long];
        // SAFETY: as above; the timeout is a number.
        result(unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait,
                epoll,
                events.as_mut_ptr(),
                count,
                libc::c_long::from(milliseconds(timeout)),
                mask.map_or(ptr::null(), ptr::from_ref),
                size_of::<SignalSet>(),
            )
        })
    }
}

/// Whether epoll_pwait2(2) is missing: it exists since Linux 5.11, and valgrind 3.19 lacks it.
static LACKS_PWAIT2: AtomicBool = AtomicBool::new(false);

/// Returns a timeout for epoll_pwait(2). A timeout beyond its range is unlimited.
fn milliseconds(timeout: Option<Duration>) -> i32 {
    let ms = timeout.map(|timeout| timeout.as_nanos().div_ceil(1_000_000));
    ms.and_then(|ms| i32::try_from(ms).ok()).unwrap_or(-1)
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrow_fd(self.raw_fd()).expect("the instance is open")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn epoll_pwait_waits_as_long_as_epoll_pwait2_and_finds_the_same() {
        let of = |nanoseconds| milliseconds(Some(Duration::from_nanos(nanoseconds)));
        assert_eq!((of(0), of(1), of(1_000_000), of(1_000_001)), (0, 1, 1, 2));
        assert_eq!((milliseconds(None), milliseconds(Some(Duration::MAX))), (-1, -1));
        let (epoll, counter) = (Epoll::new().unwrap(), super::super::eventfd().unwrap());
        epoll.add(counter.as_raw_fd(), bits::IN, 7).unwrap();
        let mut events = [EpollEvent::default(); 2];
        let (begun, brief) = (Instant::now(), Duration::from_micros(1500));
        assert_eq!(epoll.pwait(&mut events, Some(brief), None), Ok(0));
        assert!(begun.elapsed() >= brief);
        super::super::signal_eventfd(&counter);
        assert_eq!(epoll.pwait(&mut events, None, Some(&SignalSet(0))), Ok(1));
        assert_eq!((events[0].data(), events[0].events()), (7, bits::IN));
    }
}
