//! Memory that one process writes and others read: a sealed file of 64-bit words.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use millrace_sys::{Errno, MappedFile};

use crate::error::Error;
use crate::sealed::RefusedMemory;

const WORD_BYTES: usize = size_of::<u64>();

/// Words that this process writes. All are 0 at first.
#[derive(Debug)]
pub(crate) struct OwnWords {
    mapping: MappedFile,
    file: OwnedFd,
}

impl OwnWords {
    pub(crate) fn new(count: usize) -> Result<Self, Error> {
        let failed = |call| move |error| Error::Kernel(call, error);
        let bytes = count * WORD_BYTES;
        let file = millrace_sys::create_memory_file("iolite", bytes as u64)
            .map_err(failed("memfd_create"))?;
        let mapping = MappedFile::writable(file.as_fd(), bytes).map_err(failed("mmap"))?;
        millrace_sys::seal_for_readers(file.as_fd()).map_err(failed("fcntl"))?;
        Ok(Self { mapping, file })
    }

    /// Returns the file, for passing it to readers.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        word(&self.mapping, index)
    }

    /// Returns a word of 32 bits, for waiting: the first half of word `index`.
    pub(crate) fn half_word(&self, index: usize) -> &AtomicU32 {
        half_word(&self.mapping, index)
    }
}

/// Words of another process. They are mapped for reading only.
#[derive(Debug)]
pub(crate) struct PeerWords(MappedFile);

impl PeerWords {
    /// Accepts a file of `count` words from another process.
    pub(crate) fn accept(file: &OwnedFd, count: usize) -> Result<Self, RefusedMemory> {
        match millrace_sys::is_sealed_for_readers(file.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Err(RefusedMemory::Unsealed),
            Err(_) => return Err(RefusedMemory::OtherFile),
        }
        let bytes = count * WORD_BYTES;
        // The seals keep the size.
        let (length, _) =
            millrace_sys::memory_file_size(file.as_fd()).map_err(RefusedMemory::Kernel)?;
        if length < bytes as u64 {
            return Err(RefusedMemory::TooShort { length, expected: bytes as u64 });
        }
        let mapped = MappedFile::read_only_shared(file.as_fd(), bytes);
        mapped.map(Self).map_err(|error: Errno| RefusedMemory::Kernel(error))
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        word(&self.0, index)
    }

    /// Returns the first half of word `index`, for waiting.
    pub(crate) fn half_word(&self, index: usize) -> &AtomicU32 {
        half_word(&self.0, index)
    }
}

fn word(mapping: &MappedFile, index: usize) -> &AtomicU64 {
    assert!((index + 1) * WORD_BYTES <= mapping.len());
    // SAFETY: the word is inside the mapping.
    let place = unsafe { mapping.start().cast::<AtomicU64>().add(index) };
    // SAFETY: it is mapped as long as the borrow of the mapping lasts, aligned, and accessed only
    // atomically, here and by other processes. Peers' words are only loaded.
    unsafe { place.as_ref() }
}

fn half_word(mapping: &MappedFile, index: usize) -> &AtomicU32 {
    let place = std::ptr::from_ref(word(mapping, index)).cast::<AtomicU32>();
    // SAFETY: the first half of a word that is valid as long as the borrow lasts. Each word is used
    // either as a whole or by its first half.
    unsafe { &*place }
}
