//! A process's shared memory: words, bits and numbers of its sockets; and the rings that wake it.
//!
//! The orders of reads and writes here are half of an agreement whose other half is in
//! `uselect.bpf.c`; `docs/design/uselect.md` has both.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::param::page_size;

use crate::bitmap::{ReadinessBitmaps, set_bit};
use crate::bits;
use crate::internal_fd::InternalFd;
use crate::kernel::{Mapping, Result};
use crate::layout::{DOUBT, ReadOnlyPages, SLEEPERS, SOCKETS, SocketNumbers, WORDS, WritablePages};

pub(crate) struct SharedPages {
    read_only: Mapping<ReadOnlyPages>,
    pub(crate) writable: Mapping<WritablePages>,
    /// By word of descriptors: how often who is interested in one of them has changed.
    interests: Box<[AtomicU64]>,
    /// By sleeper: threads that just now put interests of their own in the place of its.
    pub(crate) replacing_threads: [AtomicU32; SLEEPERS],
}

/// What a word says of its socket.
#[derive(Clone, Copy)]
pub(crate) struct SocketWord(u64);

impl SocketWord {
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Events so far, modulo 2^16.
    pub(crate) fn edges(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// What poll(2) would say, with bits in it that nobody has asked for.
    pub(crate) fn events(self) -> u32 {
        self.0 as u32 & (0xFFFF & !DOUBT)
    }

    /// What poll(2) would say memory does not know: the E-bit, which follows the word.
    pub(crate) fn needs_kernel(self) -> bool {
        self.0 as u32 & (bits::PRI | bits::ERR | DOUBT) != 0
    }
}

impl SharedPages {
    /// Maps what the daemon has handed out.
    pub(crate) fn new(shown: BorrowedFd<'_>, own: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self {
            read_only: Mapping::new(shown, 0, false)?,
            writable: Mapping::new(own, 0, true)?,
            interests: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            replacing_threads: [const { AtomicU32::new(0) }; SLEEPERS],
        })
    }

    /// The index of a descriptor, if it is tracked. What is read there is input: our own threads
    /// wrote it, but so may a bug in the program, so it is checked.
    pub(crate) fn index(&self, fd: i32) -> Option<usize> {
        let place = self.writable.index.get(usize::try_from(fd).ok()?)?;
        let index = place.load(Ordering::Acquire) as usize;
        (0 < index && index < SOCKETS).then_some(index)
    }

    pub(crate) fn word(&self, index: usize) -> SocketWord {
        // Pairs with the exchange in settle(): what the socket's state was made of is not ours.
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

    /// Says who is interested in a descriptor, and in what, if that is still as it was `found`.
    pub(crate) fn replace_interest(&self, fd: usize, found: u32, wanted: u32) -> bool {
        let place = &self.writable.interest[fd];
        let is_set =
            place.compare_exchange(found, wanted, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_set {
            self.interests[fd / 64].fetch_add(1, Ordering::SeqCst);
        }
        is_set
    }

    /// Nobody is interested in a descriptor any more.
    pub(crate) fn clear_interest(&self, fd: usize) {
        self.writable.interest[fd].store(0, Ordering::SeqCst);
        self.interests[fd / 64].fetch_add(1, Ordering::SeqCst);
    }

    /// Another number after each change of an interest in a descriptor of this word.
    pub(crate) fn interest_versions(&self, word: usize) -> u64 {
        self.interests[word].load(Ordering::SeqCst)
    }

    /// Says which descriptor a socket has, and makes its bits what the word is.
    pub(crate) fn publish(&self, fd: usize, index: usize) {
        self.writable.index[fd].store(index as u32, Ordering::Relaxed);
        self.writable.descriptor[index].store(fd as u32 + 1, Ordering::Relaxed);
        // Pairs with the exchange in settle(): either it finds the descriptor and writes the bits,
        // or `sync` finds its word.
        fence(Ordering::SeqCst);
        self.sync_bitmaps(fd);
        set_bit(&self.writable.active, fd, true);
    }

    /// Takes that back. To be called before the descriptor is closed: from then on the number may
    /// be another socket's.
    pub(crate) fn unpublish(&self, fd: usize, index: usize) {
        set_bit(&self.writable.active, fd, false);
        self.writable.descriptor[index].store(0, Ordering::Relaxed);
        self.writable.index[fd].store(0, Ordering::Relaxed);
        self.clear_interest(fd);
        // As above; the word of no socket is 0, and so are the bits then.
        fence(Ordering::SeqCst);
        self.sync_bitmaps(fd);
    }

    /// Makes the bits of a descriptor what the word of its socket is, whichever that is now. As
    /// show() in the kernel: whoever writes looks again, so that what was outdated is repaired by
    /// who wrote it.
    fn sync_bitmaps(&self, fd: usize) {
        let index = || self.writable.index[fd].load(Ordering::SeqCst) as usize % SOCKETS;
        loop {
            let (at, own) = (index(), &self.writable);
            let word = self.read_only.word[at].load(Ordering::SeqCst);
            let bits = word as u32;
            set_bit(&own.read, fd, bits & (bits::IN | bits::HUP | bits::ERR) != 0);
            set_bit(&own.write, fd, bits & (bits::OUT | bits::ERR) != 0);
            set_bit(&own.except, fd, bits & (bits::PRI | bits::ERR | DOUBT) != 0);
            if index() == at && self.read_only.word[at].load(Ordering::SeqCst) == word {
                return;
            }
        }
    }
}

/// The kernel's ring of records (BPF_MAP_TYPE_RINGBUF, since Linux 5.8): readable while it holds
/// any. They say nothing, and are dropped unread.
pub(crate) struct WakeRing {
    fd: InternalFd,
    /// Up to where we have read; the first page.
    consumed: Mapping<AtomicU64>,
    /// Up to where the kernel has written; the second page.
    produced: Mapping<AtomicU64>,
}

impl WakeRing {
    pub(crate) fn new(fd: OwnedFd) -> Result<Self> {
        let consumed = Mapping::new(fd.as_fd(), 0, true)?;
        let produced = Mapping::new(fd.as_fd(), page_size() as u64, false)?;
        Ok(Self { fd: InternalFd::new(fd), consumed, produced })
    }

    /// Makes it unreadable until the next record comes.
    pub(crate) fn drain(&self) {
        self.consumed.store(self.produced.load(Ordering::Acquire), Ordering::Release);
    }
}

impl AsFd for WakeRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
