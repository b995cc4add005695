//! Bytes while they come in: one writes, others may read what is there.

use std::ops::{Deref, Range, RangeInclusive};
use std::sync::Arc;

use crate::error::AllocError;
use crate::extent::Extent;
use crate::memory_kind::MemoryKind;
use crate::slab::Slab;
use crate::slice::Slice;

/// Memory that is filled from its beginning on, by its one owner. What was filled never changes,
/// so slices of it can be had before all is there.
#[derive(Debug)]
pub struct Buffer {
    /// Its bytes from `filled` on are ours alone.
    extent: Arc<Extent>,
    /// As the run says; `0 <= filled <= capacity`.
    filled: usize,
    /// Bytes that fit; what the run has taken.
    capacity: usize,
}

impl Slab {
    /// A buffer to be filled, for as many bytes of `bytes` as there are side by side; rounded up
    /// to the kind's unit. A large object takes several, of [`Kind::bytes_max`] at most; such of
    /// 256 KB find their places far longer than larger ones. `tag` is how [`Slab::condemn`] names
    /// the object, such as the hash of its key.
    ///
    /// # Errors
    /// A [`Refusal`], which says what the caller can do.
    ///
    /// # Panics
    /// When `bytes` is empty, or begins at 0 or above [`Kind::bytes_max`].
    pub fn allocate(
        &self,
        kind: MemoryKind,
        bytes: RangeInclusive<usize>,
        tag: u64,
    ) -> Result<Buffer, AllocError> {
        let (allocation, generation) = self.allocate_extent(kind, bytes, tag)?;
        Ok(Buffer::new(Extent::new(self.clone(), kind, allocation, generation)))
    }
}

impl Buffer {
    fn new(extent: Extent) -> Self {
        let capacity = extent.allocation().bytes;
        Self { extent: Arc::new(extent), filled: 0, capacity }
    }

    /// Bytes that fit, filled or not.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What is still to be filled, to be written from its beginning on and then told to
    /// [`Buffer::advance`]. It is at the same address each time, wherever this value is moved.
    /// There are bytes in it that mean nothing, maybe of another object: never read it.
    pub fn unfilled(&mut self) -> &mut [u8] {
        // SAFETY: the range is inside the run and not filled; this is its one buffer, borrowed for
        // change.
        unsafe { self.extent.bytes_mut(self.filled, self.capacity - self.filled) }
    }

    /// Notes that the first `count` bytes of [`Buffer::spare`] were written: from now on everybody
    /// may read them and nobody may write them.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.capacity - self.filled);
        self.filled += count;
        self.extent.publish_filled(self.filled);
    }

    /// Copies as much of `bytes` as fits, and gives how many those are.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let spare = self.unfilled();
        let count = bytes.len().min(spare.len());
        spare[..count].copy_from_slice(&bytes[..count]);
        self.advance(count);
        count
    }

    /// A slice of what is filled.
    ///
    /// # Panics
    /// When the range goes beyond that.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.filled);
        Slice::new(self.extent.clone(), range.start, range.len())
    }

    /// What others may follow the filling by.
    pub fn view(&self) -> BufferView {
        BufferView { extent: self.extent.clone() }
    }

    /// Ends the filling: gives all that is filled, and the rest of the memory back.
    pub fn freeze(self) -> Slice {
        self.extent.release_unfilled();
        Slice::new(self.extent, 0, self.filled)
    }
}

/// The filled bytes.
impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.extent.bytes(0, self.filled)
    }
}

/// A buffer as its readers see it: it grows under their eyes, and what they saw stays. It keeps
/// the memory, but tells nobody when there is more, nor whether more will come.
#[derive(Clone, Debug)]
pub struct BufferView {
    extent: Arc<Extent>,
}

impl BufferView {
    /// A slice of what is filled.
    ///
    /// # Panics
    /// When the range goes beyond that: the length of [`Extent::deref`] never shrinks.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.extent.filled());
        Slice::new(self.extent.clone(), range.start, range.len())
    }
}

/// The bytes that are filled by now.
impl Deref for BufferView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.extent.bytes(0, self.extent.filled())
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::SLAB_BYTES_MIN;
    use crate::{MemoryKind, Slab};

    #[test]
    fn readers_see_what_is_filled_and_the_rest_goes_back() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut buffer = slab.allocate(MemoryKind::ZeroCopy, 1..=100_000, 0).unwrap();
        assert_eq!(buffer.capacity(), 25 * 4096);
        let extent = buffer.view();
        assert_eq!(&extent[..], b"");
        assert_eq!(buffer.write(b"one "), 4);
        let early = buffer.slice(0..3);
        assert_eq!(&extent[..], b"one ");
        buffer.unfilled()[..3].copy_from_slice(b"two");
        assert_eq!(&extent[..], b"one ");
        buffer.advance(3);
        assert_eq!(
            (&extent[4..], &*extent.slice(1..5), &buffer[..3]),
            (&b"two"[..], &b"ne t"[..], &b"one"[..])
        );
        assert_eq!(slab.stats().live, 25 * 4096);
        let whole = buffer.freeze();
        assert_eq!(slab.stats().live, 4096);
        assert_eq!((&*whole, &*early), (&b"one two"[..], &b"one"[..]));
        drop((whole, extent));
        assert_eq!((&*early, slab.stats().extents), (&b"one"[..], 1));
        drop(early);
        assert_eq!((slab.stats().live, slab.stats().extents), (0, 0));
    }

    #[test]
    fn a_full_buffer_takes_no_more() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut buffer = slab.allocate(MemoryKind::Copied, 1..=300, 0).unwrap();
        assert_eq!(buffer.write(&[1; 1000]), 512);
        assert_eq!((buffer.write(&[1]), buffer.unfilled().len()), (0, 0));
        let empty = slab.allocate(MemoryKind::Copied, 1..=300, 0).unwrap().freeze();
        assert_eq!((&*empty, slab.stats().live), (&b""[..], 512 + 256));
    }

    #[test]
    #[should_panic(expected = "range.end <= self.filled")]
    fn nobody_gets_a_slice_of_what_is_not_filled() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let buffer = slab.allocate(MemoryKind::Copied, 1..=300, 0).unwrap();
        buffer.slice(0..1);
    }
}
