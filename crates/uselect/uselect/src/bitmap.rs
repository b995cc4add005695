//! Bitmaps with a bit for each descriptor.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{Bitmap, SOCKETS};

/// The bitmaps of all descriptors.
#[derive(Clone, Copy)]
pub(crate) struct ReadinessBitmaps<'a> {
    /// Whether the descriptor is tracked.
    pub(crate) active: &'a Bitmap,
    /// Whether the descriptor is ready for reading, in the sense of select(2).
    pub(crate) read: &'a Bitmap,
    /// Whether the descriptor is ready for writing.
    pub(crate) write: &'a Bitmap,
    /// Whether the descriptor may have urgent data.
    pub(crate) urgent: &'a Bitmap,
    /// Whether the kernel must be called for the descriptor, for any requested event.
    pub(crate) except: &'a Bitmap,
    /// Whether the bits are hints. A set bit then means only that something happened, so the kernel
    /// must be called. A clear bit still means that the descriptor is not ready.
    pub(crate) is_hint: bool,
}

/// Returns the index of a descriptor in the bitmaps, or `None` if it is beyond them.
pub(crate) fn fd_index(fd: i32) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < SOCKETS)
}

/// Returns whether the bit of a descriptor is set, in bits that no other process or program writes.
pub(crate) fn has_bit(bits: &[u64], fd: usize) -> bool {
    bits.get(fd / 64).is_some_and(|word| word >> (fd % 64) & 1 == 1)
}

/// Returns the word of a bitmap that has the bit of a descriptor, and the mask of the bit.
pub(crate) fn word_and_bit(bitmap: &Bitmap, fd: usize) -> (&AtomicU64, u64) {
    (&bitmap[fd / 64], 1 << (fd % 64))
}

/// Returns whether the bit of a descriptor is set in a shared bitmap.
pub(crate) fn is_set(bitmap: &Bitmap, fd: usize) -> bool {
    let (word, bit) = word_and_bit(bitmap, fd);
    word.load(Ordering::SeqCst) & bit != 0
}

/// Returns the positions of the bits that are set in a word.
pub(crate) fn bit_positions(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let position = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(position)
    })
}

/// Sets or clears a bit. Writes only if the bit differs: an atomic write costs more than a read.
pub(crate) fn set_bit(bitmap: &Bitmap, fd: usize, wanted: bool) {
    let (word, bit) = word_and_bit(bitmap, fd);
    match (word.load(Ordering::SeqCst) & bit != 0, wanted) {
        (false, true) => word.fetch_or(bit, Ordering::SeqCst),
        (true, false) => word.fetch_and(!bit, Ordering::SeqCst),
        _ => return,
    };
}
