//! Memory that one process writes and others read: a sealed file of 64-bit words.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use millrace_sys::{Errno, MappedFile};

use crate::error::Error;
use crate::sealed::RefusedMemory;

pub(crate) const WORD_BYTES: usize = size_of::<u64>();

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

    /// Writes bytes from word `index` on. The caller has not published these words to readers.
    pub(crate) fn write(&self, index: usize, bytes: &[u8]) {
        let place = words(&self.mapping, index, bytes.len().div_ceil(WORD_BYTES)).as_ptr();
        // SAFETY: the words were checked to be inside the mapping, which only this process writes
        // to. Other processes do not read words that were not published.
        unsafe {
            place.cast::<u8>().cast_mut().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        }
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

    /// Copies bytes from word `index` on. The other process may change them meanwhile: only the
    /// copy counts.
    pub(crate) fn read(&self, index: usize, bytes: &mut [u8]) {
        let words = words(&self.0, index, bytes.len().div_ceil(WORD_BYTES));
        for (place, word) in bytes.chunks_mut(WORD_BYTES).zip(words) {
            let word = word.load(Ordering::Relaxed).to_ne_bytes();
            match <&mut [u8; WORD_BYTES]>::try_from(&mut *place) {
                Ok(place) => *place = word,
                // The last one.
                Err(_) => place.copy_from_slice(&word[..place.len()]),
            }
        }
    }

    /// Returns the first half of word `index`, for waiting.
    pub(crate) fn half_word(&self, index: usize) -> &AtomicU32 {
        half_word(&self.0, index)
    }
}

fn word(mapping: &MappedFile, index: usize) -> &AtomicU64 {
    &words(mapping, index, 1)[0]
}

fn words(mapping: &MappedFile, index: usize, count: usize) -> &[AtomicU64] {
    assert!((index + count) * WORD_BYTES <= mapping.len());
    // SAFETY: the words are inside the mapping.
    let first = unsafe { mapping.start().cast::<AtomicU64>().add(index) };
    // SAFETY: they are mapped as long as the borrow of the mapping lasts, aligned, and accessed
    // only atomically, except those of this process that it has not published. Peers' words are
    // only loaded.
    unsafe { std::slice::from_raw_parts(first.as_ptr(), count) }
}

fn half_word(mapping: &MappedFile, index: usize) -> &AtomicU32 {
    let place = std::ptr::from_ref(word(mapping, index)).cast::<AtomicU32>();
    // SAFETY: the first half of a word that is valid as long as the borrow lasts. Each word is used
    // either as a whole or by its first half.
    unsafe { &*place }
}
