//! `SharedPages`: the shared memory of a process. `WakeRing`: a ring that wakes one of its threads.
//!
//! The memory orderings here pair with those in `uselect.bpf.c`; `docs/design/uselect.md` describes
//! both sides.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::param::page_size;

use crate::bitmap::{ReadinessBitmaps, set_bit};
use crate::bits;
use crate::internal_fd::InternalFd;
use crate::kernel::{Mapping, Result};
use crate::layout::{
    ReadOnlyPages, SLEEPERS, SOCKETS, SocketNumbers, UNCERTAIN, WORDS, WritablePages,
};

pub(crate) struct SharedPages {
    read_only: Mapping<ReadOnlyPages>,
    pub(crate) writable: Mapping<WritablePages>,
    /// For each bitmap word, how often the interest in one of its 64 descriptors has changed.
    interest_versions: Box<[AtomicU64]>,
    /// By sleeper, the number of threads that are replacing one of its interests right now.
    pub(crate) replacing_threads: [AtomicU32; SLEEPERS],
}

/// The word of a socket.
#[derive(Clone, Copy)]
pub(crate) struct SocketWord(u64);

impl SocketWord {
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The event count, modulo 2^16.
    pub(crate) fn edges(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Returns the result of poll(2), including bits that were not requested.
    pub(crate) fn events(self) -> u32 {
        self.0 as u32 & (0xFFFF & !UNCERTAIN)
    }

    /// Returns whether poll(2) must be called, because memory does not show its result. The E-bit
    /// shows the same, but is set after the word.
    pub(crate) fn needs_kernel(self) -> bool {
        self.0 as u32 & (bits::PRI | bits::ERR | UNCERTAIN) != 0
    }
}

impl SharedPages {
    /// Maps the memory that the daemon sent.
    pub(crate) fn new(read_only: BorrowedFd<'_>, writable: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self {
            read_only: Mapping::new(read_only, 0, false)?,
            writable: Mapping::new(writable, 0, true)?,
            interest_versions: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            replacing_threads: [const { AtomicU32::new(0) }; SLEEPERS],
        })
    }

    /// Returns the index of a descriptor if it is tracked. The value is checked like input: this
    /// process wrote it, but a bug of the program may have overwritten it.
    pub(crate) fn index(&self, fd: i32) -> Option<usize> {
        let index_word = self.writable.index.get(usize::try_from(fd).ok()?)?;
        let index = index_word.load(Ordering::Acquire) as usize;
        (0 < index && index < SOCKETS).then_some(index)
    }

    pub(crate) fn word(&self, index: usize) -> SocketWord {
        // Pairs with the exchange in update_word() of the kernel side, which computes the word.
        SocketWord(self.read_only.word[index].load(Ordering::SeqCst))
    }

    pub(crate) fn numbers(&self, index: usize) -> &SocketNumbers {
        &self.read_only.numbers[index]
    }

    pub(crate) fn bits(&self) -> ReadinessBitmaps<'_> {
        let WritablePages { active, read, write, except, .. } = &*self.writable;
        ReadinessBitmaps { active, read, write, urgent: except, except, is_hint: false }
    }

    pub(crate) fn interest(&self, fd: usize) -> u32 {
        self.writable.interest[fd].load(Ordering::SeqCst)
    }

    /// Replaces the interest in a descriptor. Returns false, and changes nothing, if the interest
    /// is not `found` any more.
    pub(crate) fn replace_interest(&self, fd: usize, found: u32, wanted: u32) -> bool {
        let interest = &self.writable.interest[fd];
        let is_set =
            interest.compare_exchange(found, wanted, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_set {
            self.interest_versions[fd / 64].fetch_add(1, Ordering::SeqCst);
        }
        is_set
    }

    /// Clears the interest in a descriptor.
    pub(crate) fn clear_interest(&self, fd: usize) {
        self.writable.interest[fd].store(0, Ordering::SeqCst);
        self.interest_versions[fd / 64].fetch_add(1, Ordering::SeqCst);
    }

    /// Returns a number that changes whenever the interest in a descriptor of this bitmap word
    /// changes.
    pub(crate) fn interest_version(&self, word: usize) -> u64 {
        self.interest_versions[word].load(Ordering::SeqCst)
    }

    /// Records the descriptor of a socket, and sets its bits from its word.
    pub(crate) fn publish(&self, fd: usize, index: usize) {
        self.writable.index[fd].store(index as u32, Ordering::Relaxed);
        self.writable.descriptor[index].store(fd as u32 + 1, Ordering::Relaxed);
        // Pairs with the exchange in update_word(): either update_word() sees the descriptor and
        // writes the bits, or `sync_bitmaps` sees the new word.
        fence(Ordering::SeqCst);
        self.sync_bitmaps(fd);
        set_bit(&self.writable.active, fd, true);
    }

    /// Removes the record of a descriptor. Call this before the descriptor is closed: afterwards
    /// its number may belong to another socket.
    pub(crate) fn unpublish(&self, fd: usize, index: usize) {
        set_bit(&self.writable.active, fd, false);
        self.writable.descriptor[index].store(0, Ordering::Relaxed);
        self.writable.index[fd].store(0, Ordering::Relaxed);
        self.clear_interest(fd);
        // As above. The descriptor now has index 0, whose word is always 0, so the bits are
        // cleared.
        fence(Ordering::SeqCst);
        self.sync_bitmaps(fd);
    }

    /// Sets the bits of a descriptor from the word of its current socket. Like sync_bitmaps() on
    /// the kernel side, it repeats until word and index are unchanged: a writer with outdated
    /// values repairs what it wrote.
    fn sync_bitmaps(&self, fd: usize) {
        let index = || self.writable.index[fd].load(Ordering::SeqCst) as usize % SOCKETS;
        loop {
            let (at, writable) = (index(), &self.writable);
            let word = self.read_only.word[at].load(Ordering::SeqCst);
            let bits = word as u32;
            set_bit(&writable.read, fd, bits & (bits::IN | bits::HUP | bits::ERR) != 0);
            set_bit(&writable.write, fd, bits & (bits::OUT | bits::ERR) != 0);
            set_bit(&writable.except, fd, bits & (bits::PRI | bits::ERR | UNCERTAIN) != 0);
            if index() == at && self.read_only.word[at].load(Ordering::SeqCst) == word {
                return;
            }
        }
    }
}

/// A ring buffer of the kernel (BPF_MAP_TYPE_RINGBUF, since Linux 5.8). It is readable while it
/// holds a record. The records have no content and are dropped unread.
pub(crate) struct WakeRing {
    fd: InternalFd,
    /// The position up to which this process has read; the first page.
    consumed: Mapping<AtomicU64>,
    /// The position up to which the kernel has written; the second page.
    produced: Mapping<AtomicU64>,
}

impl WakeRing {
    pub(crate) fn new(fd: OwnedFd) -> Result<Self> {
        let consumed = Mapping::new(fd.as_fd(), 0, true)?;
        let produced = Mapping::new(fd.as_fd(), page_size() as u64, false)?;
        Ok(Self { fd: InternalFd::new(fd), consumed, produced })
    }

    /// Makes the ring unreadable until the next record.
    pub(crate) fn drain(&self) {
        self.consumed.store(self.produced.load(Ordering::Acquire), Ordering::Release);
    }
}

impl AsFd for WakeRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
