//! Sleeping until something happens to a tracked socket or to another descriptor.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd as Descriptor, PollFlags, Timespec, poll};

use crate::kernel::{self, Result};
use crate::pages::{Pages, bits};
use crate::tracker::Inner;

/// What a wait is about, collected by who waits.
#[derive(Default)]
pub(crate) struct Wanted {
    /// Tracked descriptors and the bits of poll(2) that end the wait.
    pub(crate) tracked: Vec<(i32, u16)>,
    /// Descriptors that only poll(2) knows, and the bits that it shall look for.
    pub(crate) others: Vec<(i32, u16)>,
    /// What poll(2) said of each of `others`.
    pub(crate) found: Vec<u16>,
    /// Tracked descriptors whose room to send is wanted and not there.
    pub(crate) full: Vec<i32>,
}

impl Wanted {
    pub(crate) fn clear(&mut self) {
        self.tracked.clear();
        self.others.clear();
        self.found.clear();
        self.full.clear();
    }

    /// poll(2) of the others, and for a sleeper of the ring and the daemon.
    pub(crate) fn poll(
        &mut self,
        sleeper: Option<&Inner>,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let flags = |bits| PollFlags::from_bits_retain(bits);
        let mut descriptors: Vec<Descriptor<'_>> = self
            .others
            .iter()
            .filter_map(|&(fd, bits)| {
                Some(Descriptor::from_borrowed_fd(kernel::borrow(fd)?, flags(bits)))
            })
            .collect();
        debug_assert_eq!(descriptors.len(), self.others.len());
        if let Some(inner) = sleeper {
            let ours = [inner.pages.ring().as_fd(), inner.registration()];
            let ours = ours.map(|fd| Descriptor::from_borrowed_fd(fd, PollFlags::IN));
            descriptors.extend(ours);
        }
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        poll(&mut descriptors, timeout.as_ref())?;
        if let Some(inner) = sleeper
            && descriptors.last().is_some_and(|daemon| !daemon.revents().is_empty())
        {
            inner.lose();
        }
        self.found.clear();
        self.found.extend(descriptors[..self.others.len()].iter().map(|fd| fd.revents().bits()));
        Ok(())
    }
}

/// The one thread of a process that may sleep by the ring. A second one sleeps in poll(2).
#[derive(Default)]
pub(crate) struct Sleeper {
    /// Descriptors whose interest is stored.
    published: Vec<i32>,
}

impl Sleeper {
    /// Sleeps until `deadline`, unless `is_ready` or one of the descriptors is. May return without
    /// a reason.
    pub(crate) fn sleep(
        &mut self,
        inner: &Inner,
        wanted: &mut Wanted,
        deadline: Option<Instant>,
        is_ready: impl Fn() -> bool,
    ) -> Result<()> {
        let pages = &inner.pages;
        self.publish(pages, wanted);
        pages.ring().drain();
        // Pairs with publish() in the kernel: what is interesting and that we sleep is stored before
        // words and bits are read; there they are stored before that is read.
        pages.own.sleeping.swap(1, Ordering::SeqCst);
        let mut wait = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if is_ready() {
            wait = Some(Duration::ZERO);
        }
        let slept = wanted.poll(Some(inner), wait);
        pages.own.sleeping.swap(0, Ordering::SeqCst);
        slept
    }

    /// Nobody sleeps meanwhile, so nobody reads this.
    fn publish(&mut self, pages: &Pages, wanted: &Wanted) {
        for fd in self.published.drain(..) {
            if let Some(place) = interest(pages, fd) {
                place.store(0, Ordering::Relaxed);
            }
        }
        for &(fd, bits) in &wanted.tracked {
            if let Some(place) = interest(pages, fd) {
                // Urgent data makes the socket one of the others, so it ends every sleep.
                place.fetch_or(bits | bits::PRI as u16, Ordering::Relaxed);
                self.published.push(fd);
            }
        }
    }
}

fn interest(pages: &Pages, fd: i32) -> Option<&AtomicU16> {
    pages.own.interest.get(usize::try_from(fd).ok()?)
}
