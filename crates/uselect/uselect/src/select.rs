//! uselect: select(2), answered from the bitmaps where those know (the paper's section 2, figure 2).

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::bitmap::bit_positions;
use crate::bits;
use crate::kernel::{self, Errno, Result, SignalSet};
use crate::layout::Bitmap;
use crate::poll_set::PollSet;
use crate::pollfd::PollFd;
use crate::tracker::Tracker;
use crate::view::{BlockingWait, MemoryView};
use crate::wait::{MemoryScan, WaitCall, wait};

/// Sets of descriptors, a bit each, as `fd_set` of select(2) has them. Each is as long as it need
/// be, or empty if nothing of its kind is asked; there is no limit of 1024.
#[derive(Debug, Default)]
pub struct FdSets<'a> {
    /// To be looked at for reading.
    pub read: &'a mut [u64],
    /// For writing.
    pub write: &'a mut [u64],
    /// For urgent data.
    pub except: &'a mut [u64],
}

impl FdSets<'_> {
    fn get(&self, at: usize) -> [u64; 3] {
        let word = |set: &[u64]| set.get(at).copied().unwrap_or(0);
        [word(self.read), word(self.write), word(self.except)]
    }

    fn put(&mut self, at: usize, bits: [u64; 3]) {
        for (set, bits) in [&mut *self.read, self.write, self.except].into_iter().zip(bits) {
            if let Some(word) = set.get_mut(at) {
                *word = bits;
            }
        }
    }
}

impl Tracker {
    /// select(2), or with a signal mask pselect(2): waits until one of the descriptors in `sets` is
    /// ready, `timeout` is over (`None`: never) or a signal comes; leaves in the sets those that are
    /// ready, and gives how many bits that is. System calls are made as in [`Tracker::upoll`]. After
    /// an error the sets are as they were.
    ///
    /// # Errors
    /// EBADF when one is not open and was looked at; EINTR.
    pub fn uselect(
        &self,
        sets: &mut FdSets<'_>,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let words = sets.read.len().max(sets.write.len()).max(sets.except.len());
        REQUESTED.with(|kept| {
            // What the thread's last wait has left.
            let mut asked = kept.take();
            asked.clear();
            let mut select = SelectCall { sets, asked, words };
            let waited = wait(self.shared(), &mut select, timeout, mask);
            if waited.is_err() {
                for (at, asked) in select.asked.iter().enumerate() {
                    select.sets.put(at, *asked);
                }
            }
            kept.set(select.asked);
            waited
        })
    }
}

thread_local! {
    static REQUESTED: Cell<Vec<[u64; 3]>> = const { Cell::new(Vec::new()) };
}

struct SelectCall<'a, 'b> {
    /// What is asked, until that is looked at; then what was found.
    sets: &'a mut FdSets<'b>,
    /// What was asked, saved by the first look.
    asked: Vec<[u64; 3]>,
    words: usize,
}

/// A word of the sets, and what the bitmaps say of it.
#[derive(Default)]
struct WordScan {
    asked: [u64; 3],
    /// Of `known`, what is ready.
    found: [u64; 3],
    /// Descriptors that memory answers for.
    known: u64,
    /// Of those that it does not answer for, what may be ready.
    hints: u64,
    /// Descriptors that are asked about for room to send, have none, and will not be told to.
    lacking_space: u64,
}

impl WordScan {
    fn of(view: MemoryView<'_>, asked: [u64; 3], at: usize) -> Self {
        let bits = view.bits();
        let word = |bitmap: &Bitmap| bitmap.get(at).map_or(0, |word| word.load(Ordering::SeqCst));
        let (active, except) = (word(bits.active), word(bits.except));
        let found = [asked[0] & word(bits.read), asked[1] & word(bits.write)];
        if bits.is_hint {
            let found = found[0] | found[1] | asked[2] & word(bits.urgent);
            let guesses = active & (found | (asked[0] | asked[1] | asked[2]) & except);
            return Self { asked, known: active & !guesses, hints: guesses, ..Self::default() };
        }
        // Urgent data is an exception that the kernel is asked about.
        let known = active & !except;
        let found = [found[0] & known, found[1] & known, 0];
        Self { asked, found, known, hints: 0, lacking_space: asked[1] & known & !found[1] }
    }

    fn all(&self) -> u64 {
        self.asked[0] | self.asked[1] | self.asked[2]
    }

    fn others(&self) -> u64 {
        self.all() & !self.known
    }

    fn ready(&self) -> usize {
        // Most words of most sets are 0, and many machines count bits by a dozen instructions.
        let found = self.found.iter().filter(|bits| **bits != 0);
        found.map(|bits| bits.count_ones() as usize).sum()
    }

    /// The bits of poll(2) that a descriptor is asked about for.
    fn events(&self, bit: u32) -> u32 {
        let kinds = [bits::IN, bits::OUT, bits::PRI].into_iter().zip(self.asked);
        kinds.filter(|(_, asked)| asked >> bit & 1 == 1).map(|(events, _)| events).sum()
    }
}

/// What select(2) makes of what poll(2) says of a descriptor that is asked about for `events`.
fn select_bits(events: u16, found: u16) -> [bool; 3] {
    let (events, found) = (u32::from(events), u32::from(found));
    let has = |asked, bits| events & asked != 0 && found & bits != 0;
    [
        has(bits::IN, bits::IN | bits::HUP | bits::ERR),
        has(bits::OUT, bits::OUT | bits::ERR),
        has(bits::PRI, bits::PRI),
    ]
}

impl SelectCall<'_, '_> {
    /// Adds what poll(2) said of a descriptor, behind what is found already.
    fn add_polled_fd(&mut self, other: &PollFd) -> Result<usize> {
        if u32::from(other.revents) & bits::NVAL != 0 {
            return Err(Errno::BADF);
        }
        let (at, bit) = (other.fd as usize / 64, 1 << (other.fd as usize % 64));
        let (mut found, mut added) = (self.sets.get(at), 0);
        for (kind, is_ready) in select_bits(other.events, other.revents).into_iter().enumerate() {
            if is_ready && found[kind] & bit == 0 {
                found[kind] |= bit;
                added += 1;
            }
        }
        self.sets.put(at, found);
        Ok(added)
    }
}

impl WaitCall for SelectCall<'_, '_> {
    /// The first one counts, adjusts and saves in one pass, as in the paper.
    fn scan_memory(&mut self, view: MemoryView<'_>) -> MemoryScan {
        let mut look = MemoryScan::default();
        for at in 0..self.words {
            let asked = self.asked.get(at).copied().unwrap_or_else(|| {
                let asked = self.sets.get(at);
                self.asked.push(asked);
                asked
            });
            let part = WordScan::of(view, asked, at);
            self.sets.put(at, part.found);
            look.ready += part.ready();
            look.has_hints |= part.hints != 0;
            look.has_unknown |= part.others() & !part.hints | part.lacking_space != 0;
        }
        look
    }

    fn prepare_sleep(&mut self, waiter: &mut BlockingWait<'_>) -> usize {
        let view = waiter.view();
        for (at, asked) in self.asked.iter().enumerate() {
            let before = WordScan::of(view, *asked, at);
            for bit in bit_positions(before.all() & before.known) {
                let fd = (at * 64) as i32 + bit as i32;
                if !waiter.publish(fd, before.events(bit)) {
                    waiter.poll_set().add(fd, before.events(bit), 0);
                }
            }
            let part = WordScan::of(view, *asked, at);
            for bit in bit_positions(part.lacking_space) {
                waiter.watch_writable((at * 64) as i32 + bit as i32, 0);
            }
            // What is not known any more, too.
            for bit in bit_positions(part.others() | before.others()) {
                waiter.poll_set().add((at * 64) as i32 + bit as i32, part.events(bit), 0);
            }
        }
        self.scan_memory(view).ready
    }

    fn add_polled(&mut self, asked: &PollSet) -> Result<usize> {
        asked.fds.iter().map(|other| self.add_polled_fd(other)).sum()
    }

    fn refresh_ready(&self, view: MemoryView<'_>) {
        for at in 0..self.words {
            let [read, write, except] = self.sets.get(at);
            for bit in bit_positions(read | write | except) {
                view.refresh((at * 64) as i32 + bit as i32);
            }
        }
    }

    fn call_kernel(
        &mut self,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        if self.asked.is_empty() {
            self.asked.extend((0..self.words).map(|at| self.sets.get(at)));
        }
        let mut fds = Vec::new();
        for (at, asked) in self.asked.iter().enumerate() {
            let part = WordScan { asked: *asked, ..WordScan::default() };
            fds.extend(bit_positions(part.all()).map(|bit| PollFd {
                fd: (at * 64) as i32 + bit as i32,
                events: part.events(bit) as u16,
                revents: 0,
            }));
        }
        kernel::ppoll(&mut fds, timeout, mask)?;
        for at in 0..self.words {
            self.sets.put(at, [0; 3]);
        }
        fds.iter().map(|fd| self.add_polled_fd(fd)).sum()
    }
}
