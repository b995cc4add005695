//! What a watcher has of its descriptors: those that memory knows, and which are the kernel's.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::attach::Mode;
use crate::bitmap::{has, is_set, number, places, set};
use crate::bits;
use crate::kernel::{self, Epoll};
use crate::layout::WORDS;
use crate::pollfd::PollFd;
use crate::region::Region;
use crate::sleep::Sleeper;

/// What was found of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Event {
    /// The caller's number.
    pub data: u64,
    /// Bits of epoll(7).
    pub events: u32,
    /// Events since it was told last, modulo 2^16, at least 1 where it is watched by edges; 0 if
    /// it is not tracked, where nobody counts.
    pub edges: u16,
}

/// A descriptor that memory knows.
#[derive(Clone, Copy, Default)]
struct Item {
    data: u64,
    /// As it was added: bits of epoll(7), EPOLLET and EPOLLONESHOT among them.
    events: u32,
    /// Of its word, when it was told last.
    edges: u16,
    /// It was added, changed, or has room again since: told by edges, too.
    is_fresh: bool,
    /// It was told once, which was all that was asked for.
    is_over: bool,
}

/// Which descriptors memory knows, and of which there may be something to tell.
#[derive(Default)]
pub(crate) struct State {
    /// By descriptor, as far as any was added.
    items: Vec<Item>,
    /// Bits by descriptor, as many words each: known by memory; perhaps to be told; the kernel's.
    mine: Vec<u64>,
    pending: Vec<u64>,
    others: Vec<u64>,
    /// By word of descriptors: one of them may be pending.
    pending_words: Vec<u64>,
    /// The descriptor with which the next scan begins, so that those of low numbers do not come
    /// first for ever.
    next: usize,
    /// Threads that sleep.
    pub(crate) waiters: u32,
    /// There is something that memory does not know: descriptors of the kernel's, or room.
    pub(crate) has_others: bool,
    pub(crate) is_given_up: bool,
}

impl State {
    /// Whether a descriptor is known by memory. One that was closed and opened anew is not: its
    /// interest has been taken back.
    pub(crate) fn has(&mut self, region: &Region, sleeper: &Sleeper, fd: i32) -> bool {
        let Some(fd) = usize::try_from(fd).ok().filter(|fd| has(&self.mine, *fd)) else {
            return false;
        };
        let is_kept = sleeper.has_kept(region.pages.interest(fd));
        if !is_kept {
            self.drop_bits(fd);
        }
        is_kept
    }

    /// False if it is the kernel's.
    pub(crate) fn add(
        &mut self,
        region: &Region,
        sleeper: &Sleeper,
        fd: i32,
        events: u32,
        data: u64,
    ) -> bool {
        let is_known =
            events & (bits::EXCLUSIVE | bits::WAKEUP) == 0 && region.pages.index(fd).is_some();
        // Where the kernel has it already, or had, it says what is right.
        if !is_known || has(&self.others, fd as usize) {
            return false;
        }
        if !sleeper.keep(&region.pages, fd, events) {
            return false;
        }
        let edges = region.pages.index(fd).map_or(0, |index| region.pages.word(index).edges());
        let fd = fd as usize;
        self.grow(fd);
        self.items[fd] = Item { data, events, edges, is_fresh: true, is_over: false };
        put(&mut self.mine, fd);
        self.add_pending(fd);
        true
    }

    fn grow(&mut self, fd: usize) {
        let items = self.items.len().max((fd / 64 + 1) * 64);
        self.items.resize(items, Item::default());
        let groups = self.pending_words.len().max(fd / 64 / 64 + 1);
        self.pending_words.resize(groups, 0);
        for bits in [&mut self.mine, &mut self.pending, &mut self.others] {
            bits.resize(groups * 64, 0);
        }
    }

    fn add_pending(&mut self, fd: usize) {
        put(&mut self.pending, fd);
        put(&mut self.pending_words, fd / 64);
    }

    pub(crate) fn modify(
        &mut self,
        region: &Region,
        sleeper: &Sleeper,
        fd: i32,
        events: u32,
        data: u64,
    ) {
        // It is ours, so nobody else changes it.
        sleeper.keep(&region.pages, fd, events);
        let edges = self.items[fd as usize].edges;
        self.items[fd as usize] = Item { data, events, edges, is_fresh: true, is_over: false };
        self.add_pending(fd as usize);
    }

    pub(crate) fn remove(&mut self, region: &Region, fd: i32) {
        region.pages.end_interest(fd as usize);
        self.drop_bits(fd as usize);
    }

    pub(crate) fn forget(&mut self, fd: i32) {
        if let Some(fd) = usize::try_from(fd).ok().filter(|fd| fd / 64 < self.mine.len()) {
            self.drop_bits(fd);
            take(&mut self.others, fd);
        }
    }

    /// What memory knows, and where it can be asked, has still.
    pub(crate) fn tracked(&mut self, region: &Region, sleeper: &Sleeper) -> Vec<i32> {
        let (is_live, numbers) = (region.is_live(), 0..self.mine.len() as i32 * 64);
        let is_tracked = |fd: &i32| match is_live {
            true => self.has(region, sleeper, *fd),
            false => has(&self.mine, *fd as usize),
        };
        numbers.filter(is_tracked).collect()
    }

    fn drop_bits(&mut self, fd: usize) {
        take(&mut self.mine, fd);
        take(&mut self.pending, fd);
    }

    pub(crate) fn leave_to_kernel(&mut self, fd: i32) {
        self.has_others = true;
        // Of those beyond, memory never knows.
        if let Some(fd) = number(fd) {
            self.grow(fd);
            put(&mut self.others, fd);
        }
    }

    pub(crate) fn give_up(&mut self, region: &Region, sleeper: &Sleeper, items: &Epoll) {
        self.is_given_up = true;
        for fd in self.tracked(region, sleeper) {
            self.give_up_one(region, items, fd);
        }
    }

    /// One that is closed by now is nobody's.
    pub(crate) fn give_up_one(&mut self, region: &Region, items: &Epoll, fd: i32) {
        let item = self.items[fd as usize];
        let events =
            if item.is_over { item.events & (bits::EDGE | bits::ONCE) } else { item.events };
        let _ = items.add(fd, events, item.data);
        if region.is_live() {
            region.pages.end_interest(fd as usize);
        }
        self.drop_bits(fd as usize);
        self.leave_to_kernel(fd);
    }

    /// Nobody waits any more.
    pub(crate) fn end(&mut self, region: &Region, sleeper: &Sleeper) {
        if region.is_live() {
            for fd in self.tracked(region, sleeper) {
                self.remove(region, fd);
            }
        }
    }

    pub(crate) fn lacks_room(&mut self, region: &Region, bell: &Epoll, fd: i32) {
        set(&region.pages.own.write, fd as usize, false);
        self.wait_for_room(bell, fd as usize);
    }

    /// One that cannot be watched is looked at with the next that happens to it.
    fn wait_for_room(&mut self, bell: &Epoll, fd: usize) {
        let _ = bell.add_once(fd as i32, bits::OUT, fd as u64);
        self.has_others = true;
    }

    /// The kernel says so.
    pub(crate) fn has_room(&mut self, region: &Region, fd: usize) {
        region.refresh(fd as i32);
        if has(&self.mine, fd) {
            self.items[fd].is_fresh = true;
            self.add_pending(fd);
        }
    }

    /// Whether there may be something to tell.
    pub(crate) fn has_changes(&self, region: &Region, sleeper: &Sleeper) -> bool {
        let mut words = self.pending_words.iter().zip(sleeper.changed_words(&region.pages));
        words.any(|(pending, changed)| pending | changed.load(Ordering::SeqCst) != 0)
    }

    /// Tells what there is, and gives how much.
    pub(crate) fn scan(
        &mut self,
        region: &Region,
        sleeper: &Sleeper,
        bell: &Epoll,
        events: &mut [Event],
    ) -> usize {
        // Pairs with publish() in the kernel: bits of `changed` are read behind this; there they
        // are stored before.
        for (pending, changed) in
            self.pending_words.iter_mut().zip(sleeper.changed_words(&region.pages))
        {
            if changed.load(Ordering::SeqCst) != 0 {
                *pending |= changed.swap(0, Ordering::SeqCst);
            }
        }
        let (words, mut count) = (self.mine.len(), 0);
        debug_assert!(words <= WORDS);
        let (first, beyond) = (self.next / 64, u64::MAX << (self.next % 64));
        // The first word twice: its end, and at last its beginning.
        let parts = [(first..words, beyond), (0..words.min(first + 1), !beyond)];
        for (mut numbers, part) in parts {
            while let Some(at) = first_within(&self.pending_words, numbers.clone()) {
                numbers.start = at + 1;
                let changed = &region.pages.own.changed[at];
                let mut new = changed.load(Ordering::SeqCst) & self.mine[at];
                // One that was closed and opened anew may be another watcher's, who is to find it.
                for bit in places(new) {
                    if !self.has(region, sleeper, (at * 64) as i32 + bit as i32) {
                        new &= !(1 << bit);
                    }
                }
                if new != 0 {
                    // Pairs with publish(), too: words are read behind this; there they are stored
                    // before the bit is looked at.
                    changed.fetch_and(!new, Ordering::SeqCst);
                    self.pending[at] |= new;
                }
                let left = self.pending[at] & if at == first { part } else { u64::MAX };
                for fd in places(left).map(|bit| at * 64 + bit as usize) {
                    if count == events.len() {
                        self.next = fd;
                        return count;
                    }
                    if let Some(event) = self.tell(region, sleeper, bell, fd) {
                        events[count] = event;
                        count += 1;
                    }
                }
                if self.pending[at] == 0 {
                    take(&mut self.pending_words, at);
                }
            }
        }
        count
    }

    /// What there is to tell of a descriptor. It stays pending while it is ready and not watched by
    /// edges.
    fn tell(
        &mut self,
        region: &Region,
        sleeper: &Sleeper,
        bell: &Epoll,
        fd: usize,
    ) -> Option<Event> {
        let index = region.pages.index(fd as i32).filter(|_| self.has(region, sleeper, fd as i32));
        let (Some(index), false) = (index, self.items[fd].is_over) else {
            take(&mut self.pending, fd);
            return None;
        };
        let (word, item) = (region.pages.word(index), self.items[fd]);
        // One word, for its events and what they are: what comes behind it is an event of its own.
        let mut ready = match word.is_doubtful() || is_set(&region.pages.own.except, fd) {
            true => asked_of_kernel(fd),
            false => region.events_by(word, fd),
        };
        let lacks_room = |ready| item.events & bits::OUT != 0 && ready & bits::OUT == 0;
        // The kernel may have said that there is room where memory knows of none.
        if lacks_room(ready) && item.is_fresh {
            ready = asked_of_kernel(fd);
        }
        if lacks_room(ready) {
            self.wait_for_room(bell, fd);
        }
        let found = ready & (item.events | bits::ALWAYS) & 0xFFFF;
        // In lean mode bits follow the word, which may have been read, and its event counted as told,
        // before they were there; a bit that is there has not been told.
        let is_untold = region.mode == Mode::Lean && found & (bits::READING | bits::WRITING) != 0;
        let is_new = word.edges() != item.edges || item.is_fresh || is_untold;
        if found == 0 || item.events & bits::EDGE != 0 && !is_new {
            take(&mut self.pending, fd);
            return None;
        }
        if item.events & (bits::EDGE | bits::ONCE) != 0 {
            take(&mut self.pending, fd);
        }
        if item.events & bits::EDGE != 0 && region.mode == Mode::Lean {
            take_told(region, fd, found);
        }
        let told = &mut self.items[fd];
        *told = Item { edges: word.edges(), is_fresh: false, ..item };
        told.is_over = item.events & bits::ONCE != 0;
        let edges = word.edges().wrapping_sub(item.edges).max(1);
        Some(Event { data: item.data, events: found, edges })
    }
}

/// Lean: what is told by edges need not be told again. What comes from now on sets the bit, and says
/// that there is a change.
fn take_told(region: &Region, fd: usize, found: u32) {
    let own = &region.pages.own;
    for (bitmap, told) in [(&own.read, bits::READING), (&own.write, bits::WRITING)] {
        if found & told != 0 {
            set(bitmap, fd, false);
        }
    }
}

/// poll(2), for what memory does not know.
fn asked_of_kernel(fd: usize) -> u32 {
    const ALL: u16 = !(bits::NVAL as u16);
    let mut asked = [PollFd { fd: fd as i32, events: ALL, revents: 0 }];
    let _ = kernel::ppoll(&mut asked, Some(Duration::ZERO), None);
    u32::from(asked[0].revents)
}

/// The first bit in a range that is set.
fn first_within(bits: &[u64], range: Range<usize>) -> Option<usize> {
    let mut at = range.start;
    while at < range.end {
        let rest = bits[at / 64] >> (at % 64);
        if rest != 0 {
            return Some(at + rest.trailing_zeros() as usize).filter(|at| *at < range.end);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

fn put(bits: &mut [u64], fd: usize) {
    bits[fd / 64] |= 1 << (fd % 64);
}

fn take(bits: &mut [u64], fd: usize) {
    bits[fd / 64] &= !(1 << (fd % 64));
}
