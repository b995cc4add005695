//! `Sleeper`: lets a thread sleep until something happens to a tracked socket or another
//! descriptor.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::bitmap::{bit_positions, has_bit};
use crate::bits;
use crate::kernel::Epoll;
use crate::layout::UNCERTAIN;
use crate::pages::{SharedPages, WakeRing};
use crate::poll_set::PollSet;

/// The mark of an interest that belongs to a watcher. Such an interest stays until the watcher
/// clears it.
pub(crate) const PERSISTENT: u32 = 1 << 31;

/// The resources that a thread needs to sleep. An upoll or uselect takes it for the duration of the
/// wait.
pub(crate) struct Sleeper {
    /// The number of the sleeper, `0 <= number < SLEEPERS`.
    pub(crate) number: usize,
    pub(crate) ring: WakeRing,
    /// An epoll instance with the sockets that lack send space, each one-shot. Created for the
    /// first such socket.
    pub(crate) writable_epoll: Option<Epoll>,
    /// Descriptors whose interest was stored and not cleared since.
    published: FdBits,
    /// Descriptors whose interest was published since this sleep began.
    published_now: FdBits,
    /// Descriptors for which the kernel reported send space during this wait, and memory shows
    /// none.
    pub(crate) contradicted: Vec<i32>,
    pub(crate) poll_set: PollSet,
}

/// A bit for each descriptor, in as many words as needed.
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

/// Identifies when and by which sleeper descriptors were published; see [`Sleeper::stamp`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InterestStamp {
    sleeper: usize,
    version: u64,
}

impl Sleeper {
    pub(crate) fn new(number: usize, ring: WakeRing) -> Self {
        let (published, published_now) = (FdBits::default(), FdBits::default());
        let (contradicted, poll_set) = (Vec::new(), PollSet::default());
        Self {
            number,
            ring,
            writable_epoll: None,
            published,
            published_now,
            contradicted,
            poll_set,
        }
    }

    /// Forgets the poll set and the published descriptors of the previous sleep. Stored interests
    /// stay.
    pub(crate) fn clear(&mut self) {
        self.poll_set.clear();
        self.published_now.0.clear();
    }

    /// Begins a sleep: from here on the kernel wakes this sleeper for its interests. The caller
    /// must then scan memory for earlier events. Returns false if another sleeper is taking over
    /// one of its interests, because that interest may be lost. Persistent interests are not
    /// affected.
    pub(crate) fn begin_sleep(&self, pages: &SharedPages) -> bool {
        self.ring.drain();
        // Pairs with wake_sleeper() in the kernel: the flag is stored before words and bits are
        // read here; the kernel stores these before it reads the flag.
        pages.writable.sleeper[self.number].sleeping.swap(1, Ordering::SeqCst);
        // Pairs with `take_over`.
        pages.replacing_threads[self.number].load(Ordering::SeqCst) == 0
    }

    /// Ends a sleep: the kernel does not wake this sleeper any more.
    pub(crate) fn end_sleep(&self, pages: &SharedPages) {
        pages.writable.sleeper[self.number].sleeping.swap(0, Ordering::SeqCst);
    }

    /// Returns one bit for each word of `WritablePages::changed`. It is set if this sleeper is
    /// interested in a descriptor of that word that has changed.
    pub(crate) fn changed_words<'a>(&self, pages: &'a SharedPages) -> &'a [AtomicU64] {
        &pages.writable.sleeper[self.number].changed_words
    }

    /// Publishes which events of a tracked descriptor end this sleep. Returns false if the interest
    /// belongs to a watcher, or to another sleeper that sleeps: then poll(2) must be called. The
    /// word must be read after this.
    pub(crate) fn publish(&mut self, pages: &SharedPages, fd: i32, events: u32) -> bool {
        let (at, mut wanted) = (fd as usize, self.interest(events));
        let found = pages.interest(at);
        // Events of another entry for the same descriptor end this sleep too.
        if has_bit(&self.published_now.0, at) && found >> 16 == self.number as u32 {
            wanted |= found;
        }
        self.published_now.add(at / 64, 1 << (at % 64));
        if found == wanted {
            return true;
        }
        if found & PERSISTENT != 0 || !self.take_over(pages, at, found, wanted) {
            return false;
        }
        self.published.add(at / 64, 1 << (at % 64));
        true
    }

    /// Like [`Sleeper::publish`], for the descriptors of one bitmap word whose interest has not
    /// changed since they were published.
    pub(crate) fn keep_published(&mut self, word: usize, bits: u64) {
        self.published_now.add(word, bits);
    }

    /// Replaces an interest, unless it belongs to another sleeper that sleeps. Returns whether it
    /// was replaced.
    fn take_over(&self, pages: &SharedPages, fd: usize, found: u32, wanted: u32) -> bool {
        let other = (found >> 16) as usize % pages.writable.sleeper.len();
        if found == 0 || other == self.number {
            return pages.replace_interest(fd, found, wanted);
        }
        // Pairs with `begin_sleep` of the other sleeper. One of three things is true: it sees this
        // count, it sees that its interest is gone, or this thread sees that it sleeps. To replace
        // the interest first, and restore it if the other one sleeps, would lose the events in
        // between.
        pages.replacing_threads[other].fetch_add(1, Ordering::SeqCst);
        let is_asleep = pages.writable.sleeper[other].sleeping.load(Ordering::SeqCst) == 1;
        let is_replaced = !is_asleep && pages.replace_interest(fd, found, wanted);
        pages.replacing_threads[other].fetch_sub(1, Ordering::SeqCst);
        is_replaced
    }

    /// Returns a stamp. While it stays the same, the interests that [`Sleeper::publish`] stored for
    /// a bitmap word are unchanged.
    pub(crate) fn stamp(&self, pages: &SharedPages, word: usize) -> InterestStamp {
        // A sleeper that takes over an interest of this word increments the version.
        InterestStamp { sleeper: self.number, version: pages.interest_version(word) }
    }

    /// Like [`Sleeper::publish`], for a watcher: the interest stays. Returns false if another
    /// watcher owns it, or another sleeper sleeps on it.
    pub(crate) fn publish_persistent(&self, pages: &SharedPages, fd: i32, events: u32) -> bool {
        let (at, wanted) = (fd as usize, self.interest(events) | PERSISTENT);
        let found = pages.interest(at);
        let is_free = found & PERSISTENT == 0 || self.has_persistent(found);
        is_free && self.take_over(pages, at, found, wanted)
    }

    /// Returns whether an interest is a persistent one of this sleeper.
    pub(crate) fn has_persistent(&self, interest: u32) -> bool {
        interest & !0xFFFF == PERSISTENT | (self.number as u32) << 16
    }

    /// Returns the stored form of an interest. It includes the bits that make the library call
    /// poll(2), because poll(2) may then return any of the requested events.
    fn interest(&self, events: u32) -> u32 {
        (self.number as u32) << 16
            | (events | bits::ALWAYS_REPORTED | bits::PRI | UNCERTAIN) & 0xFFFF
    }

    /// Clears the interests of a sleep that is over.
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

    /// Requests a wake-up when a socket has send space. If epoll_ctl(2) fails, or the kernel has
    /// reported send space during this wait that memory does not show, the socket is added to the
    /// poll set.
    pub(crate) fn watch_writable(&mut self, fd: i32, entry: usize) {
        if self.writable_epoll.is_none() {
            self.writable_epoll = Epoll::new().ok();
        }
        let add =
            |writable_epoll: &Epoll| writable_epoll.add_oneshot(fd, bits::OUT, fd as u64).is_ok();
        if self.contradicted.contains(&fd) || !self.writable_epoll.as_ref().is_some_and(add) {
            self.poll_set.add(fd, bits::OUT, entry);
        }
    }
}
