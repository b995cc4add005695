//! A process's shared memory: words, bits and numbers of its sockets, and the ring that wakes it.
//!
//! The orders of reads and writes here are half of an agreement whose other half is in
//! `uselect.bpf.c`; `docs/design/uselect.md` has both.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::kernel::{Mapping, Result, page_bytes};
use crate::layout::{Own, SOCKETS, Shown};

/// Bits of poll(2), as the kernel's programs write them.
pub(crate) mod bits {
    pub(crate) const IN: u32 = 0x001;
    pub(crate) const PRI: u32 = 0x002;
    pub(crate) const OUT: u32 = 0x004;
    pub(crate) const ERR: u32 = 0x008;
    pub(crate) const HUP: u32 = 0x010;
}

pub(crate) struct Pages {
    shown: Mapping<Shown>,
    pub(crate) own: Mapping<Own>,
    ring: Ring,
}

impl Pages {
    /// Maps what the daemon has handed out.
    pub(crate) fn new(shown: BorrowedFd<'_>, own: BorrowedFd<'_>, ring: OwnedFd) -> Result<Self> {
        Ok(Self {
            shown: Mapping::new(shown, 0, false)?,
            own: Mapping::new(own, 0, true)?,
            ring: Ring::new(ring)?,
        })
    }

    /// What is readable when the sleeper is told.
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The index of a descriptor, if it is tracked. What is read there is input: our own threads
    /// wrote it, but so may a bug in the program, so it is checked.
    pub(crate) fn index(&self, fd: i32) -> Option<usize> {
        let place = self.own.index.get(usize::try_from(fd).ok()?)?;
        let index = place.load(Ordering::Acquire) as usize;
        (0 < index && index < SOCKETS).then_some(index)
    }

    /// What poll(2) would say of a socket, with bits in it that nobody has asked for.
    pub(crate) fn word(&self, index: usize) -> u32 {
        // Pairs with the exchange in settle(): what the socket's state was made of is not ours.
        self.shown.word[index].load(Ordering::Acquire) as u32
    }

    pub(crate) fn generation(&self, index: usize) -> u32 {
        (self.shown.word[index].load(Ordering::Acquire) >> 32) as u32
    }

    pub(crate) fn numbers(&self, index: usize) -> &crate::layout::Numbers {
        &self.shown.numbers[index]
    }

    /// Says which descriptor a socket has, and makes its bits what the word is.
    pub(crate) fn publish(&self, fd: usize, index: usize) {
        self.own.index[fd].store(index as u32, Ordering::Relaxed);
        self.own.descriptor[index].store(fd as u32 + 1, Ordering::Relaxed);
        // Pairs with the exchange in settle(): either it finds the descriptor and writes the bits,
        // or `sync` finds its word.
        fence(Ordering::SeqCst);
        self.sync(fd);
        set(&self.own.active, fd, true);
    }

    /// Takes that back. To be called before the descriptor is closed: from then on the number may
    /// be another socket's.
    pub(crate) fn withdraw(&self, fd: usize, index: usize) {
        set(&self.own.active, fd, false);
        self.own.descriptor[index].store(0, Ordering::Relaxed);
        self.own.index[fd].store(0, Ordering::Relaxed);
        self.own.interest[fd].store(0, Ordering::Relaxed);
        // As above; the word of no socket is 0, and so are the bits then.
        fence(Ordering::SeqCst);
        self.sync(fd);
    }

    /// Makes the bits of a descriptor what the word of its socket is, whichever that is now. As
    /// publish() in the kernel: whoever writes looks again, so that what was outdated is repaired by
    /// who wrote it.
    fn sync(&self, fd: usize) {
        loop {
            let index = self.own.index[fd].load(Ordering::SeqCst) as usize % SOCKETS;
            let word = self.shown.word[index].load(Ordering::SeqCst);
            let bits = word as u32;
            set(&self.own.read, fd, bits & (bits::IN | bits::HUP | bits::ERR) != 0);
            set(&self.own.write, fd, bits & (bits::OUT | bits::ERR) != 0);
            set(&self.own.except, fd, bits & bits::PRI != 0);
            let same = self.own.index[fd].load(Ordering::SeqCst) as usize % SOCKETS == index;
            if same && self.shown.word[index].load(Ordering::SeqCst) == word {
                return;
            }
        }
    }
}

/// Writes only what is wrong: a locked write costs more than a read.
fn set(bitmap: &[AtomicU64], fd: usize, is_set: bool) {
    let (word, bit) = (&bitmap[fd / 64], 1 << (fd % 64));
    match (word.load(Ordering::SeqCst) & bit != 0, is_set) {
        (false, true) => word.fetch_or(bit, Ordering::SeqCst),
        (true, false) => word.fetch_and(!bit, Ordering::SeqCst),
        _ => return,
    };
}

/// The kernel's ring of records (BPF_MAP_TYPE_RINGBUF, since Linux 5.8): readable while it holds
/// any. They say nothing, and are dropped unread.
pub(crate) struct Ring {
    fd: OwnedFd,
    /// Up to where we have read; the first page.
    consumed: Mapping<AtomicU64>,
    /// Up to where the kernel has written; the second page.
    produced: Mapping<AtomicU64>,
}

impl Ring {
    fn new(fd: OwnedFd) -> Result<Self> {
        let consumed = Mapping::new(fd.as_fd(), 0, true)?;
        let produced = Mapping::new(fd.as_fd(), page_bytes() as u64, false)?;
        Ok(Self { fd, consumed, produced })
    }

    /// Makes it unreadable until the next record comes.
    pub(crate) fn drain(&self) {
        self.consumed.store(self.produced.load(Ordering::Acquire), Ordering::Release);
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
