//! `View` and `Waiter`: what a wait sees of memory, whoever keeps it, and how it sleeps.

use std::time::Duration;

use crate::asked::Asked;
use crate::bitmap::Bits;
use crate::filter::{Filter, Guesser};
use crate::kernel::{Result, SignalSet};
use crate::region::Region;
use crate::sleep::{Sleeper, Stamp};

/// Memory that is this process's and is kept up to date.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    Region(&'a Region),
    Filter(&'a Filter),
}

impl<'a> View<'a> {
    pub(crate) fn bits(self) -> Bits<'a> {
        match self {
            Self::Region(region) => region.pages.bits(),
            Self::Filter(filter) => filter.bits(),
        }
    }

    /// Takes in what the kernel has to tell: how many calls that took; `None` where that cannot be
    /// done now, and the kernel has to be asked for everything.
    pub(crate) fn refill(self) -> Option<u32> {
        match self {
            Self::Region(_) => Some(0),
            Self::Filter(filter) => filter.refill(),
        }
    }

    /// What poll(2) would say of a descriptor, with bits in it that nobody has asked for.
    pub(crate) fn events(self, fd: usize) -> Option<u32> {
        match self {
            Self::Region(region) => Some(region.events(fd, region.pages.index(fd as i32)?)),
            Self::Filter(_) => None,
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
            Self::Filter(filter) => filter.is_ours(),
        }
    }

    /// Nothing if as many sleep as can, which then is done in the system call asked for.
    pub(crate) fn waiter(self) -> Option<Waiter<'a>> {
        match self {
            Self::Region(region) => {
                let mut sleeper = region.sleeper()?;
                sleeper.doubtful.clear();
                Some(Waiter::Region(region, sleeper))
            }
            Self::Filter(filter) => Some(Waiter::Filter(filter, filter.guesser()?)),
        }
    }
}

/// A thread that asks the kernel, and sleeps unless there is an answer.
pub(crate) enum Waiter<'a> {
    Region(&'a Region, Box<Sleeper>),
    Filter(&'a Filter, Guesser),
}

impl<'a> Waiter<'a> {
    pub(crate) fn view(&self) -> View<'a> {
        match self {
            Self::Region(region, _) => View::Region(region),
            Self::Filter(filter, _) => View::Filter(filter),
        }
    }

    /// What poll(2) is to be asked about.
    pub(crate) fn asked(&mut self) -> &mut Asked {
        match self {
            Self::Region(_, sleeper) => &mut sleeper.asked,
            Self::Filter(_, guesser) => &mut guesser.asked,
        }
    }

    /// Begins a question. From here on the kernel tells of what is expected; false if it cannot
    /// now, and has to be asked for everything.
    pub(crate) fn begin(&mut self) -> bool {
        match self {
            Self::Region(region, sleeper) => {
                sleeper.clear();
                let begins = sleeper.begin(&region.pages);
                if !begins {
                    sleeper.end(&region.pages);
                }
                begins
            }
            Self::Filter(filter, guesser) => {
                guesser.asked.clear();
                filter.begin();
                true
            }
        }
    }

    /// Says what of a descriptor that memory knows ends this sleep; false if the kernel is to be
    /// asked instead. What memory says of it is to be looked at behind this.
    pub(crate) fn expect(&mut self, fd: i32, events: u32) -> bool {
        match self {
            Self::Region(region, sleeper) => {
                region.pages.index(fd).is_some() && sleeper.publish(&region.pages, fd, events)
            }
            Self::Filter(..) => true,
        }
    }

    /// Where this is as it was, all that has been said of a word of descriptors by
    /// [`Waiter::expect`] since is still so.
    pub(crate) fn stamp(&self, word: usize) -> Stamp {
        match self {
            Self::Region(region, sleeper) => sleeper.stamp(&region.pages, word),
            Self::Filter(..) => Stamp::default(),
        }
    }

    /// Says that again of some of a word of descriptors, of which it is still so.
    pub(crate) fn expect_still(&mut self, word: usize, bits: u64) {
        if let Self::Region(_, sleeper) = self {
            sleeper.expect_still(word, bits);
        }
    }

    /// Has the kernel tell when a socket that memory knows to be full has room.
    pub(crate) fn wait_for_room(&mut self, fd: i32, entry: usize) {
        if let Self::Region(_, sleeper) = self {
            sleeper.wait_for_room(fd, entry);
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
            Self::Region(region, sleeper) => sleeper.end(&region.pages),
            Self::Filter(filter, _) => filter.end(),
        }
        polled
    }

    /// Something has ended a sleep that is of no interest any more.
    pub(crate) fn take_back(&mut self) {
        if let Self::Region(region, sleeper) = self {
            sleeper.take_back(&region.pages);
        }
    }

    /// The wait is over.
    pub(crate) fn rest(self) {
        match self {
            Self::Region(region, sleeper) => region.rest(sleeper),
            Self::Filter(filter, guesser) => filter.rest(guesser),
        }
    }
}
