//! `View` and `Waiter`: what a wait sees of memory, whoever keeps it, and how it sleeps.

use std::time::Duration;

use crate::bitmap::ReadinessBitmaps;
use crate::kernel::{Result, SignalSet};
use crate::multishot::{HintPoller, Multishot};
use crate::poll_set::PollSet;
use crate::region::ProcessRegion;
use crate::sleeper::{InterestStamp, Sleeper};

/// Memory that is this process's and is kept up to date.
#[derive(Clone, Copy)]
pub(crate) enum MemoryView<'a> {
    Region(&'a ProcessRegion),
    Multishot(&'a Multishot),
}

impl<'a> MemoryView<'a> {
    pub(crate) fn bits(self) -> ReadinessBitmaps<'a> {
        match self {
            Self::Region(region) => region.pages.bits(),
            Self::Multishot(filter) => filter.bits(),
        }
    }

    /// Takes in what the kernel has to tell: how many calls that took; `None` where that cannot be
    /// done now, and the kernel has to be asked for everything.
    pub(crate) fn fetch_completions(self) -> Option<u32> {
        match self {
            Self::Region(_) => Some(0),
            Self::Multishot(filter) => filter.fetch_completions(),
        }
    }

    /// What poll(2) would say of a descriptor, with bits in it that nobody has asked for.
    pub(crate) fn events(self, fd: usize) -> Option<u32> {
        match self {
            Self::Region(region) => Some(region.events(fd, region.pages.index(fd as i32)?)),
            Self::Multishot(_) => None,
        }
    }

    /// Has the kernel look at a descriptor that is told.
    pub(crate) fn refresh(self, fd: i32) {
        if let Self::Region(region) = self {
            region.refresh(fd);
        }
    }

    pub(crate) fn is_live(self) -> bool {
        match self {
            Self::Region(region) => region.is_live(),
            Self::Multishot(filter) => filter.is_this_process(),
        }
    }

    /// Nothing if as many sleep as can, which then is done in the system call asked for.
    pub(crate) fn blocking_wait(self) -> Option<BlockingWait<'a>> {
        match self {
            Self::Region(region) => {
                let mut sleeper = region.take_sleeper()?;
                sleeper.contradicted.clear();
                Some(BlockingWait::Region(region, sleeper))
            }
            Self::Multishot(filter) => Some(BlockingWait::Filter(filter, filter.take_poller()?)),
        }
    }
}

/// A thread that asks the kernel, and sleeps unless there is an answer.
pub(crate) enum BlockingWait<'a> {
    Region(&'a ProcessRegion, Box<Sleeper>),
    Filter(&'a Multishot, HintPoller),
}

impl<'a> BlockingWait<'a> {
    pub(crate) fn view(&self) -> MemoryView<'a> {
        match self {
            Self::Region(region, _) => MemoryView::Region(region),
            Self::Filter(filter, _) => MemoryView::Multishot(filter),
        }
    }

    /// What poll(2) is to be asked about.
    pub(crate) fn poll_set(&mut self) -> &mut PollSet {
        match self {
            Self::Region(_, sleeper) => &mut sleeper.poll_set,
            Self::Filter(_, guesser) => &mut guesser.asked,
        }
    }

    /// Begins a question. From here on the kernel tells of what is expected; false if it cannot
    /// now, and has to be asked for everything.
    pub(crate) fn begin(&mut self) -> bool {
        match self {
            Self::Region(region, sleeper) => {
                sleeper.clear();
                let begins = sleeper.begin_sleep(&region.pages);
                if !begins {
                    sleeper.end_sleep(&region.pages);
                }
                begins
            }
            Self::Filter(filter, guesser) => {
                guesser.asked.clear();
                filter.begin_sleep();
                true
            }
        }
    }

    /// Says what of a descriptor that memory knows ends this sleep; false if the kernel is to be
    /// asked instead. What memory says of it is to be looked at behind this.
    pub(crate) fn publish(&mut self, fd: i32, events: u32) -> bool {
        match self {
            Self::Region(region, sleeper) => {
                region.pages.index(fd).is_some() && sleeper.publish(&region.pages, fd, events)
            }
            Self::Filter(..) => true,
        }
    }

    /// Where this is as it was, all that has been said of a word of descriptors by
    /// [`Waiter::expect`] since is still so.
    pub(crate) fn stamp(&self, word: usize) -> InterestStamp {
        match self {
            Self::Region(region, sleeper) => sleeper.stamp(&region.pages, word),
            Self::Filter(..) => InterestStamp::default(),
        }
    }

    /// Says that again of some of a word of descriptors, of which it is still so.
    pub(crate) fn keep_published(&mut self, word: usize, bits: u64) {
        if let Self::Region(_, sleeper) = self {
            sleeper.keep_published(word, bits);
        }
    }

    /// Has the kernel tell when a socket that memory knows to be full has room.
    pub(crate) fn watch_writable(&mut self, fd: i32, entry: usize) {
        if let Self::Region(_, sleeper) = self {
            sleeper.watch_writable(fd, entry);
        }
    }

    /// poll(2) of what is asked, and of what tells of the rest. True if there is more to ask.
    pub(crate) fn poll(
        &mut self,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<bool> {
        let polled = match self {
            Self::Region(region, sleeper) => sleeper.poll(region, timeout, mask),
            Self::Filter(filter, guesser) => filter.poll(guesser, timeout, mask).map(|()| false),
        };
        match self {
            Self::Region(region, sleeper) => sleeper.end_sleep(&region.pages),
            Self::Filter(filter, _) => filter.end_sleep(),
        }
        polled
    }

    /// Something has ended a sleep that is of no interest any more.
    pub(crate) fn withdraw(&mut self) {
        if let Self::Region(region, sleeper) = self {
            sleeper.withdraw(&region.pages);
        }
    }

    /// The wait is over.
    pub(crate) fn finish(self) {
        match self {
            Self::Region(region, sleeper) => region.return_sleeper(sleeper),
            Self::Filter(filter, guesser) => filter.return_poller(guesser),
        }
    }
}
