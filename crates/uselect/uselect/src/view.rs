//! `MemoryView` and `BlockingWait`: the parts of a wait that differ between the two kinds of
//! memory.

use std::time::Duration;

use crate::bitmap::ReadinessBitmaps;
use crate::kernel::{Result, SignalSet};
use crate::multishot::{HintPoller, Multishot};
use crate::poll_set::PollSet;
use crate::region::ProcessRegion;
use crate::sleeper::{InterestStamp, Sleeper};

/// Memory that belongs to this process and is kept up to date.
#[derive(Clone, Copy)]
pub(crate) enum MemoryView<'a> {
    Region(&'a ProcessRegion),
    Multishot(&'a Multishot),
}

impl<'a> MemoryView<'a> {
    pub(crate) fn bits(self) -> ReadinessBitmaps<'a> {
        match self {
            Self::Region(region) => region.pages.bits(),
            Self::Multishot(multishot) => multishot.bits(),
        }
    }

    /// Takes the completions of a multishot ring. Returns the number of system calls that this
    /// took. Returns `None` if another thread is taking them: then the kernel must be called for
    /// all descriptors.
    pub(crate) fn fetch_completions(self) -> Option<u32> {
        match self {
            Self::Region(_) => Some(0),
            Self::Multishot(multishot) => multishot.fetch_completions(),
        }
    }

    /// Returns what poll(2) would return for a descriptor, including bits that were not requested;
    /// `None` if memory does not show it.
    pub(crate) fn events(self, fd: usize) -> Option<u32> {
        match self {
            Self::Region(region) => Some(region.events(fd, region.pages.index(fd as i32)?)),
            Self::Multishot(_) => None,
        }
    }

    /// Updates the word of a descriptor that is about to be reported.
    pub(crate) fn refresh(self, fd: i32) {
        if let Self::Region(region) = self {
            region.refresh(fd);
        }
    }

    pub(crate) fn is_live(self) -> bool {
        match self {
            Self::Region(region) => region.is_live(),
            Self::Multishot(multishot) => multishot.is_this_process(),
        }
    }

    /// Begins a wait that may sleep. Returns `None` if no sleeper is free; then the wait is the
    /// system call.
    pub(crate) fn blocking_wait(self) -> Option<BlockingWait<'a>> {
        match self {
            Self::Region(region) => {
                let mut sleeper = region.take_sleeper()?;
                sleeper.contradicted.clear();
                Some(BlockingWait::Region(region, sleeper))
            }
            Self::Multishot(multishot) => {
                Some(BlockingWait::Multishot(multishot, multishot.take_poller()?))
            }
        }
    }
}

/// A wait that calls the kernel, and sleeps unless something is ready.
pub(crate) enum BlockingWait<'a> {
    Region(&'a ProcessRegion, Box<Sleeper>),
    Multishot(&'a Multishot, HintPoller),
}

impl<'a> BlockingWait<'a> {
    pub(crate) fn view(&self) -> MemoryView<'a> {
        match self {
            Self::Region(region, _) => MemoryView::Region(region),
            Self::Multishot(multishot, _) => MemoryView::Multishot(multishot),
        }
    }

    /// Returns the descriptors that poll(2) is called for.
    pub(crate) fn poll_set(&mut self) -> &mut PollSet {
        match self {
            Self::Region(_, sleeper) => &mut sleeper.poll_set,
            Self::Multishot(_, poller) => &mut poller.poll_set,
        }
    }

    /// Begins a sleep. From here on the kernel wakes this thread for published descriptors. Returns
    /// false if an interest may be lost ([`Sleeper::begin_sleep`]): then the kernel must be called
    /// for all descriptors.
    pub(crate) fn begin(&mut self) -> bool {
        match self {
            Self::Region(region, sleeper) => {
                sleeper.clear();
                let has_begun = sleeper.begin_sleep(&region.pages);
                if !has_begun {
                    sleeper.end_sleep(&region.pages);
                }
                has_begun
            }
            Self::Multishot(multishot, poller) => {
                poller.poll_set.clear();
                multishot.begin_sleep();
                true
            }
        }
    }

    /// Publishes which events of a tracked descriptor end this sleep. Returns false if poll(2) must
    /// be called for it. Memory must be read after this.
    pub(crate) fn publish(&mut self, fd: i32, events: u32) -> bool {
        match self {
            Self::Region(region, sleeper) => {
                region.pages.index(fd).is_some() && sleeper.publish(&region.pages, fd, events)
            }
            Self::Multishot(..) => true,
        }
    }

    /// Returns a stamp. While it is unchanged, everything that [`BlockingWait::publish`] stored for
    /// a word of descriptors is still valid.
    pub(crate) fn stamp(&self, word: usize) -> InterestStamp {
        match self {
            Self::Region(region, sleeper) => sleeper.stamp(&region.pages, word),
            Self::Multishot(..) => InterestStamp::default(),
        }
    }

    /// Like [`BlockingWait::publish`], for descriptors of one word that are still published from an
    /// earlier sleep.
    pub(crate) fn keep_published(&mut self, word: usize, bits: u64) {
        if let Self::Region(_, sleeper) = self {
            sleeper.keep_published(word, bits);
        }
    }

    /// Requests a wake-up when a socket that lacks send space gets some.
    pub(crate) fn watch_writable(&mut self, fd: i32, entry: usize) {
        if let Self::Region(_, sleeper) = self {
            sleeper.watch_writable(fd, entry);
        }
    }

    /// Calls poll(2) for the poll set and for the library's own descriptors, by which the kernel
    /// wakes this thread for all other sockets. Returns true if poll(2) must be called again, for
    /// more descriptors.
    pub(crate) fn poll(
        &mut self,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<bool> {
        let polled = match self {
            Self::Region(region, sleeper) => sleeper.poll(region, timeout, mask),
            Self::Multishot(multishot, poller) => {
                multishot.poll(poller, timeout, mask).map(|()| false)
            }
        };
        match self {
            Self::Region(region, sleeper) => sleeper.end_sleep(&region.pages),
            Self::Multishot(multishot, _) => multishot.end_sleep(),
        }
        polled
    }

    /// Clears the published interests after a wake-up without a result.
    pub(crate) fn withdraw(&mut self) {
        if let Self::Region(region, sleeper) = self {
            sleeper.withdraw(&region.pages);
        }
    }

    /// Ends the wait and puts its sleeper back into the pool.
    pub(crate) fn finish(self) {
        match self {
            Self::Region(region, sleeper) => region.return_sleeper(sleeper),
            Self::Multishot(multishot, poller) => multishot.return_poller(poller),
        }
    }
}
