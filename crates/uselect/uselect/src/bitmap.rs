//! Bits by descriptor.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{Bitmap, SOCKETS};

/// What memory says of all descriptors.
#[derive(Clone, Copy)]
pub(crate) struct ReadinessBitmaps<'a> {
    /// Memory knows of it.
    pub(crate) active: &'a Bitmap,
    /// By what select(2) asks about.
    pub(crate) read: &'a Bitmap,
    pub(crate) write: &'a Bitmap,
    pub(crate) urgent: &'a Bitmap,
    /// The kernel has to be asked, whatever the question is.
    pub(crate) except: &'a Bitmap,
    /// A bit that is set says only that something has happened, so the kernel is to be asked; one
    /// that is not says as surely as else that the descriptor is not ready.
    pub(crate) is_hint: bool,
}

/// The number of a descriptor, if bitmaps have a bit of it.
pub(crate) fn fd_index(fd: i32) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < SOCKETS)
}

/// Whether a descriptor's bit is set among bits of this process alone.
pub(crate) fn has_bit(bits: &[u64], fd: usize) -> bool {
    bits.get(fd / 64).is_some_and(|word| word >> (fd % 64) & 1 == 1)
}

/// The words of a bitmap in which a descriptor's bit is, and the bit.
pub(crate) fn word_and_bit(bitmap: &Bitmap, fd: usize) -> (&AtomicU64, u64) {
    (&bitmap[fd / 64], 1 << (fd % 64))
}

pub(crate) fn is_set(bitmap: &Bitmap, fd: usize) -> bool {
    let (word, bit) = word_and_bit(bitmap, fd);
    word.load(Ordering::SeqCst) & bit != 0
}

/// The places of the bits of a word.
pub(crate) fn bit_positions(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let place = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(place)
    })
}

/// Writes only what is wrong: a locked write costs more than a read.
pub(crate) fn set_bit(bitmap: &Bitmap, fd: usize, wanted: bool) {
    let (word, bit) = word_and_bit(bitmap, fd);
    match (word.load(Ordering::SeqCst) & bit != 0, wanted) {
        (false, true) => word.fetch_or(bit, Ordering::SeqCst),
        (true, false) => word.fetch_and(!bit, Ordering::SeqCst),
        _ => return,
    };
}
