//! uselect: select(2), served from the bitmaps where possible (section 2, figure 2 of the paper).

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

/// Sets of descriptors with a bit for each, like `fd_set` of select(2). A set may have any length,
/// also beyond FD_SETSIZE (1,024 bits). An empty set requests nothing.
#[derive(Debug, Default)]
pub struct FdSets<'a> {
    /// Descriptors to check for reading.
    pub read: &'a mut [u64],
    /// Descriptors to check for writing.
    pub write: &'a mut [u64],
    /// Descriptors to check for urgent data.
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
    /// Waits like select(2), or with a signal mask like pselect(2), until one of the descriptors in
    /// `sets` is ready, the timeout expires (`None`: never) or a signal is handled. Leaves the
    /// ready descriptors in the sets, and returns the number of bits. System calls are made as in
    /// [`Tracker::upoll`]. After an error the sets are unchanged.
    ///
    /// # Errors
    /// EBADF if a descriptor that was checked is not open; EINTR.
    pub fn uselect(
        &self,
        sets: &mut FdSets<'_>,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let words = sets.read.len().max(sets.write.len()).max(sets.except.len());
        REQUESTED.with(|saved| {
            // The vector still holds the bits of this thread's last wait.
            let mut requested = saved.take();
            requested.clear();
            let mut select = SelectCall { sets, requested, words };
            let result = wait(self.shared(), &mut select, timeout, mask);
            if result.is_err() {
                for (at, requested) in select.requested.iter().enumerate() {
                    select.sets.put(at, *requested);
                }
            }
            saved.set(select.requested);
            result
        })
    }
}

thread_local! {
    static REQUESTED: Cell<Vec<[u64; 3]>> = const { Cell::new(Vec::new()) };
}

struct SelectCall<'a, 'b> {
    /// The requested bits until the first scan; afterwards the ready ones.
    sets: &'a mut FdSets<'b>,
    /// The requested bits, saved by the first scan.
    requested: Vec<[u64; 3]>,
    words: usize,
}

/// A word of the sets, and its state in the bitmaps.
#[derive(Default)]
struct WordScan {
    requested: [u64; 3],
    /// Ready bits of the descriptors in `known`.
    found: [u64; 3],
    /// Descriptors whose state memory shows.
    known: u64,
    /// Other descriptors that may be ready.
    hints: u64,
    /// Descriptors in `known` that wait for send space and have none. New send space is not
    /// reported for them.
    lacking_space: u64,
}

impl WordScan {
    fn of(view: MemoryView<'_>, requested: [u64; 3], at: usize) -> Self {
        let bits = view.bits();
        let word = |bitmap: &Bitmap| bitmap.get(at).map_or(0, |word| word.load(Ordering::SeqCst));
        let (active, except) = (word(bits.active), word(bits.except));
        let found = [requested[0] & word(bits.read), requested[1] & word(bits.write)];
        if bits.is_hint {
            let found = found[0] | found[1] | requested[2] & word(bits.urgent);
            let hints = active & (found | (requested[0] | requested[1] | requested[2]) & except);
            return Self { requested, known: active & !hints, hints, ..Self::default() };
        }
        // Urgent data sets the except bit, and then the kernel is called.
        let known = active & !except;
        let found = [found[0] & known, found[1] & known, 0];
        Self { requested, found, known, hints: 0, lacking_space: requested[1] & known & !found[1] }
    }

    /// Returns the descriptors that are in any of the sets.
    fn all(&self) -> u64 {
        self.requested[0] | self.requested[1] | self.requested[2]
    }

    /// Returns the descriptors whose state memory does not show.
    fn unknown(&self) -> u64 {
        self.all() & !self.known
    }

    fn ready(&self) -> usize {
        // Most words of most sets are 0, and many processors need a dozen instructions to count
        // bits.
        let found = self.found.iter().filter(|bits| **bits != 0);
        found.map(|bits| bits.count_ones() as usize).sum()
    }

    /// Returns the bits of poll(2) that are requested for a descriptor: one for each set that has
    /// it.
    fn events(&self, bit: u32) -> u32 {
        let event_bits = [bits::IN, bits::OUT, bits::PRI].into_iter().zip(self.requested);
        event_bits
            .filter(|(_, requested)| requested >> bit & 1 == 1)
            .map(|(events, _)| events)
            .sum()
    }
}

/// Returns in which of the three sets a descriptor is ready, if it was requested for `events` and
/// poll(2) returned `found`.
fn select_bits(events: u16, found: u16) -> [bool; 3] {
    let (events, found) = (u32::from(events), u32::from(found));
    let has = |requested, bits| events & requested != 0 && found & bits != 0;
    [
        has(bits::IN, bits::IN | bits::HUP | bits::ERR),
        has(bits::OUT, bits::OUT | bits::ERR),
        has(bits::PRI, bits::PRI),
    ]
}

impl SelectCall<'_, '_> {
    /// Adds the result of poll(2) for a descriptor to the bits that are set already.
    fn add_polled_fd(&mut self, other: &PollFd) -> Result<usize> {
        if u32::from(other.revents) & bits::NVAL != 0 {
            return Err(Errno::BADF);
        }
        let (at, bit) = (other.fd as usize / 64, 1 << (other.fd as usize % 64));
        let (mut found, mut added) = (self.sets.get(at), 0);
        for (set, is_ready) in select_bits(other.events, other.revents).into_iter().enumerate() {
            if is_ready && found[set] & bit == 0 {
                found[set] |= bit;
                added += 1;
            }
        }
        self.sets.put(at, found);
        Ok(added)
    }
}

impl WaitCall for SelectCall<'_, '_> {
    /// The first scan saves the requested bits, replaces them with the ready ones, and counts
    /// these, all in one pass as in the paper.
    fn scan_memory(&mut self, view: MemoryView<'_>) -> MemoryScan {
        let mut scan = MemoryScan::default();
        for at in 0..self.words {
            let requested = self.requested.get(at).copied().unwrap_or_else(|| {
                let requested = self.sets.get(at);
                self.requested.push(requested);
                requested
            });
            let word_scan = WordScan::of(view, requested, at);
            self.sets.put(at, word_scan.found);
            scan.ready += word_scan.ready();
            scan.has_hints |= word_scan.hints != 0;
            scan.has_unknown |=
                word_scan.unknown() & !word_scan.hints | word_scan.lacking_space != 0;
        }
        scan
    }

    fn prepare_sleep(&mut self, blocking: &mut BlockingWait<'_>) -> usize {
        let view = blocking.view();
        for (at, requested) in self.requested.iter().enumerate() {
            let before = WordScan::of(view, *requested, at);
            for bit in bit_positions(before.all() & before.known) {
                let fd = (at * 64) as i32 + bit as i32;
                if !blocking.publish(fd, before.events(bit)) {
                    blocking.poll_set().add(fd, before.events(bit), 0);
                }
            }
            let word_scan = WordScan::of(view, *requested, at);
            for bit in bit_positions(word_scan.lacking_space) {
                blocking.watch_writable((at * 64) as i32 + bit as i32, 0);
            }
            // Includes descriptors whose state became unknown after `before` was read.
            for bit in bit_positions(word_scan.unknown() | before.unknown()) {
                blocking.poll_set().add((at * 64) as i32 + bit as i32, word_scan.events(bit), 0);
            }
        }
        self.scan_memory(view).ready
    }

    fn add_polled(&mut self, poll_set: &PollSet) -> Result<usize> {
        poll_set.fds.iter().map(|other| self.add_polled_fd(other)).sum()
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
        if self.requested.is_empty() {
            self.requested.extend((0..self.words).map(|at| self.sets.get(at)));
        }
        let mut fds = Vec::new();
        for (at, requested) in self.requested.iter().enumerate() {
            let word_scan = WordScan { requested: *requested, ..WordScan::default() };
            fds.extend(bit_positions(word_scan.all()).map(|bit| PollFd {
                fd: (at * 64) as i32 + bit as i32,
                events: word_scan.events(bit) as u16,
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
