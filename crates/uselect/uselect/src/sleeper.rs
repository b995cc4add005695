//! `Sleeper`: sleeping until something happens to a tracked socket or to another descriptor.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::bitmap::{bit_positions, has_bit};
use crate::bits;
use crate::kernel::Epoll;
use crate::layout::DOUBT;
use crate::pages::{SharedPages, WakeRing};
use crate::poll_set::PollSet;

/// In an interest: it is a watcher's, and stays until that takes it back.
pub(crate) const KEPT: u32 = 1 << 31;

/// What a thread sleeps by. One that waits by upoll or uselect has it for the time of the wait.
pub(crate) struct Sleeper {
    pub(crate) number: usize,
    pub(crate) ring: WakeRing,
    /// Sockets that had no room when somebody wanted to send, each told of once; made when there
    /// is a first one.
    pub(crate) writable_epoll: Option<Epoll>,
    /// Descriptors whose interest was stored since it was last taken back.
    published: FdBits,
    /// Those that were expected since this sleep began.
    expected: FdBits,
    /// Of which the kernel has said during this wait that there is room, and memory has not.
    pub(crate) contradicted: Vec<i32>,
    pub(crate) poll_set: PollSet,
}

/// A bit for each; as many words as there are descriptors for.
#[derive(Default)]
struct FdBits(Vec<u64>);

impl FdBits {
    fn add(&mut self, word: usize, bits: u64) {
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bits;
    }
}

/// When, and by whom, descriptors were expected: see [`Sleeper::stamp`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InterestStamp {
    sleeper: usize,
    interests: u64,
}

impl Sleeper {
    pub(crate) fn new(number: usize, ring: WakeRing) -> Self {
        let (published, expected) = (FdBits::default(), FdBits::default());
        let (doubtful, asked) = (Vec::new(), PollSet::default());
        Self {
            number,
            ring,
            writable_epoll: None,
            published,
            expected,
            contradicted: doubtful,
            poll_set: asked,
        }
    }

    /// Begins a question: nothing is collected or expected.
    pub(crate) fn clear(&mut self) {
        self.poll_set.clear();
        self.expected.0.clear();
    }

    /// From here on the kernel tells of what interests this sleeper. What has happened before is to
    /// be looked for behind this. False while another one takes over an interest, and what that may
    /// be is not known: only what is kept is told of.
    pub(crate) fn begin_sleep(&self, pages: &SharedPages) -> bool {
        self.ring.drain();
        // Pairs with wake() in the kernel: that we sleep is stored before words and bits are read;
        // there they are stored before that is read.
        pages.writable.sleeper[self.number].sleeping.swap(1, Ordering::SeqCst);
        // Pairs with `replace`.
        pages.replacing_threads[self.number].load(Ordering::SeqCst) == 0
    }

    pub(crate) fn end_sleep(&self, pages: &SharedPages) {
        pages.writable.sleeper[self.number].sleeping.swap(0, Ordering::SeqCst);
    }

    /// By word of descriptors, what has changed of those that this sleeper is interested in.
    pub(crate) fn changed_words<'a>(&self, pages: &'a SharedPages) -> &'a [AtomicU64] {
        &pages.writable.sleeper[self.number].changed_words
    }

    /// Says what of a tracked descriptor ends this sleep; false if another one has it: then poll(2)
    /// is to be asked. The word is to be read behind this.
    pub(crate) fn publish(&mut self, pages: &SharedPages, fd: i32, events: u32) -> bool {
        let (at, mut wanted) = (fd as usize, self.interest(events));
        let found = pages.interest(at);
        // What another entry of the question waits for ends this sleep, too.
        if has_bit(&self.expected.0, at) && found >> 16 == self.number as u32 {
            wanted |= found;
        }
        self.expected.add(at / 64, 1 << (at % 64));
        if found == wanted {
            return true;
        }
        if found & KEPT != 0 || !self.take_over(pages, at, found, wanted) {
            return false;
        }
        self.published.add(at / 64, 1 << (at % 64));
        true
    }

    /// Of a word of descriptors, what [`Sleeper::publish`] has said before is so in this sleep.
    pub(crate) fn keep_published(&mut self, word: usize, bits: u64) {
        self.expected.add(word, bits);
    }

    /// Puts an interest in the place of another one, unless that is of a sleeper that sleeps.
    fn take_over(&self, pages: &SharedPages, fd: usize, found: u32, wanted: u32) -> bool {
        let other = (found >> 16) as usize % pages.writable.sleeper.len();
        if found == 0 || other == self.number {
            return pages.replace_interest(fd, found, wanted);
        }
        // Pairs with `begin` of the other one: it finds us here, finds its interest gone, or is
        // seen here to sleep. To give it back instead would be too late for what happens meanwhile.
        pages.replacing_threads[other].fetch_add(1, Ordering::SeqCst);
        let is_asleep = pages.writable.sleeper[other].sleeping.load(Ordering::SeqCst) == 1;
        let is_taken = !is_asleep && pages.replace_interest(fd, found, wanted);
        pages.replacing_threads[other].fetch_sub(1, Ordering::SeqCst);
        is_taken
    }

    /// Another one after whatever may have changed what [`Sleeper::publish`] has said of a word of
    /// descriptors.
    pub(crate) fn stamp(&self, pages: &SharedPages, word: usize) -> InterestStamp {
        // Pairs with `replace` of another sleeper, as `begin` does: what that has taken is counted
        // here.
        InterestStamp { sleeper: self.number, interests: pages.interest_versions(word) }
    }

    /// As [`Sleeper::publish`], for good: false if somebody sleeps on it.
    pub(crate) fn publish_kept(&self, pages: &SharedPages, fd: i32, events: u32) -> bool {
        let (at, wanted) = (fd as usize, self.interest(events) | KEPT);
        let found = pages.interest(at);
        let is_free = found & KEPT == 0 || self.has_kept(found);
        is_free && self.take_over(pages, at, found, wanted)
    }

    /// Whether an interest is what this sleeper keeps.
    pub(crate) fn has_kept(&self, interest: u32) -> bool {
        interest & !0xFFFF == KEPT | (self.number as u32) << 16
    }

    /// What memory has to ask the kernel about interests everybody: the answer may be anything.
    fn interest(&self, events: u32) -> u32 {
        (self.number as u32) << 16 | (events | bits::ALWAYS_REPORTED | bits::PRI | DOUBT) & 0xFFFF
    }

    /// Something has ended a sleep that is of no interest any more.
    pub(crate) fn withdraw(&mut self, pages: &SharedPages) {
        for (word, published) in self.published.0.drain(..).enumerate() {
            for fd in bit_positions(published).map(|bit| word * 64 + bit as usize) {
                let found = pages.interest(fd);
                if found >> 16 == self.number as u32 {
                    pages.replace_interest(fd, found, 0);
                }
            }
        }
    }

    /// Has the kernel tell when a socket has room. One that cannot be watched is asked about.
    pub(crate) fn watch_writable(&mut self, fd: i32, entry: usize) {
        if self.writable_epoll.is_none() {
            self.writable_epoll = Epoll::new().ok();
        }
        let add = |rooms: &Epoll| rooms.add_oneshot(fd, bits::OUT, fd as u64).is_ok();
        if self.contradicted.contains(&fd) || !self.writable_epoll.as_ref().is_some_and(add) {
            self.poll_set.add(fd, bits::OUT, entry);
        }
    }
}
