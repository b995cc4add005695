//! Immutable bytes.

use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::extent::{Extent, Source};
use crate::sealed::SealedMemory;
use crate::slab::StatCounters;
use crate::slice_id::SliceId;

/// Bytes that do not move, and that nothing else changes, while this is held. Cloning increments a
/// reference count.
#[derive(Clone, Debug)]
pub struct Slice {
    pub(crate) extent: Arc<Extent>,
    /// `start + length <= filled` of the extent.
    pub(crate) start: u32,
    length: u32,
}

const _: () = assert!(size_of::<Slice>() == 16);

impl Slice {
    pub(crate) fn new(extent: Arc<Extent>, start: usize, length: usize) -> Self {
        Self { extent, start: start as u32, length: length as u32 }
    }

    /// Returns the id of this slice.
    pub fn id(&self) -> SliceId {
        SliceId {
            pool: self.extent.pool(),
            length: self.length,
            offset: self.extent.offset + u64::from(self.start),
            generation: self.extent.generation,
        }
    }

    /// Returns a part of this slice.
    ///
    /// # Panics
    /// If the range exceeds the slice.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len());
        Self::new(self.extent.clone(), self.start as usize + range.start, range.len())
    }

    /// Returns the file of the bytes and their offset, for sending them zero-copy by sendfile(2);
    /// `None` for memory that is sent by copying. From now on the memory is not written to again
    /// before it was returned to the kernel. The file is for sending only: never pass it to another
    /// process, write to it or map it.
    pub fn sendfile_source(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.extent.sendfile_source(self.start as usize)
    }

    /// Returns the sealed file of the bytes and their offset there.
    pub(crate) fn sealed_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.extent.source {
            Source::Sealed(memory) => Some((memory.file(), u64::from(self.start))),
            _ => None,
        }
    }

    /// Returns the sealed file of the bytes if they are all that it has.
    pub(crate) fn whole_file(&self) -> Option<&SealedMemory> {
        match &self.extent.source {
            Source::Sealed(memory) => {
                (self.start == 0 && self.len() == memory.len()).then_some(memory)
            }
            _ => None,
        }
    }

    /// Returns whether any memory of the same extent may have been sent zero-copy.
    pub fn was_sent(&self) -> bool {
        self.extent.was_sent()
    }

    /// Returns the bytes for changing them in place, if this is the sole holder. A sole holder
    /// shares the extent with no other slice, buffer or view, and none of it was sent zero-copy or
    /// passed to another process.
    /// The slice has a new generation afterwards. Other holders build an aggregate instead: see
    /// [`Aggregate::write`](crate::Aggregate::write).
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        let (start, length) = (self.start as usize, self.length as usize);
        let extent = self.sole_extent()?;
        extent.renew_generation();
        // SAFETY: the range is inside the extent, and this is the only holder. Another holder could
        // be made only from `self`, which is borrowed mutably.
        Some(unsafe { extent.bytes_mut(start, length) })
    }

    /// Returns the extent if this is its sole holder, and no other process or the kernel may refer
    /// to it.
    pub(crate) fn sole_extent(&mut self) -> Option<&mut Extent> {
        Arc::get_mut(&mut self.extent).filter(|extent| extent.is_changeable())
    }

    /// Returns whether `next` is in the same extent and begins where this slice ends.
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        Arc::ptr_eq(&self.extent, &next.extent) && self.start + self.length == next.start
    }

    /// Appends `next`, which follows this slice.
    pub(crate) fn extend(&mut self, next: &Self) {
        debug_assert!(self.is_followed_by(next));
        self.length += next.length;
    }

    /// Returns the counters of the slab of this slice.
    pub(crate) fn counters(&self) -> Option<&StatCounters> {
        match &self.extent.source {
            Source::Slab(slab, _) => Some(&slab.shared().counters),
            _ => None,
        }
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.extent.bytes(self.start as usize, self.length as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slab;
    use crate::limits::SLAB_BYTES_MIN;
    use crate::memory_kind::MemoryKind;
    use crate::test_slices::slice;

    #[test]
    fn slices_are_send_and_sync() {
        fn shared<T: Send + Sync>() {}
        shared::<Slice>();
        shared::<crate::BufferView>();
        shared::<crate::Aggregate>();
        shared::<Slab>();
        shared::<crate::Buffer>();
    }

    #[test]
    fn an_id_is_current_until_the_memory_is_reused() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let whole = slice(&slab, b"0123456789");
        let part = whole.slice(2..5);
        assert_eq!(&*part, b"234");
        let id = part.id();
        assert_eq!((id.pool, id.length), (0, 3));
        assert_eq!(id.offset, whole.id().offset + 2);
        drop(whole);
        assert!(slab.is_current(&id));
        assert!(!slab.is_current(&SliceId { pool: 1, ..id }));
        assert!(!slab.is_current(&SliceId { length: 1 << 30, ..id }));
        assert!(!slab.is_current(&SliceId { offset: u64::MAX / 2, ..id }));
        drop(part);
        assert!(!slab.is_current(&id));
        let next = slice(&slab, b"xyxyxyxyxy");
        assert_eq!(next.id().offset, id.offset - 2, "memory is reused at once");
        assert!(next.id().generation > id.generation);
        assert!(!slab.is_current(&id) && slab.is_current(&next.id()));
    }

    #[test]
    fn only_a_sole_holder_changes_bytes() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut buffer = slab.allocate(MemoryKind::Copied, 5..=5, 0).unwrap();
        buffer.write(b"bytes");
        let mut part = buffer.slice(0..2);
        assert!(part.get_mut().is_none(), "the buffer may grow");
        let view = buffer.view();
        drop(buffer);
        assert!(part.get_mut().is_none(), "a view may read it");
        drop(view);
        let before = part.id();
        part.get_mut().unwrap().copy_from_slice(b"BY");
        assert_eq!(&*part, b"BY");
        assert!(!slab.is_current(&before) && slab.is_current(&part.id()));
        let clone = part.clone();
        assert!(part.get_mut().is_none());
        drop(clone);
        assert!(part.get_mut().is_some());
    }
}
