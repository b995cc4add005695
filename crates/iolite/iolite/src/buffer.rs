//! Memory that is being filled: one owner writes, others may read what is filled.

use std::ops::{Deref, Range, RangeInclusive};
use std::sync::Arc;

use crate::error::{AllocError, Error};
use crate::extent::Extent;
use crate::memory_kind::MemoryKind;
use crate::pool::Pool;
use crate::sealed::SealedMemory;
use crate::slab::Slab;
use crate::slice::Slice;

/// Memory that its only owner fills from the beginning on. Filled bytes never change, so slices of
/// them can be made before the buffer is full.
#[derive(Debug)]
pub struct Buffer {
    /// Its bytes from `filled` on belong to this buffer alone.
    extent: Arc<Extent>,
    /// The same value as in the extent; `0 <= filled <= capacity`.
    filled: usize,
    /// The allocated bytes of the extent.
    capacity: usize,
}

impl Slab {
    /// Allocates a buffer whose size is in the range `bytes`, rounded up to the unit of the kind.
    /// It is smaller than the end of the range if no contiguous memory of that size is free. A
    /// large object takes several buffers, each of at most [`MemoryKind::bytes_max`]. In a slab
    /// that fills up, allocations of 256 KB succeed long after larger ones have begun to fail.
    /// [`Slab::start_evacuation`] names the object by `tag`, such as the hash of its key.
    ///
    /// # Errors
    /// An [`AllocError`], which says what the caller can do.
    ///
    /// # Panics
    /// If `bytes` is empty, begins at 0, or begins above [`MemoryKind::bytes_max`].
    pub fn allocate(
        &self,
        kind: MemoryKind,
        bytes: RangeInclusive<usize>,
        tag: u64,
    ) -> Result<Buffer, AllocError> {
        let (allocation, generation) = self.allocate_extent(kind, bytes, tag)?;
        Ok(Buffer::new(Extent::in_slab(self.clone(), kind, allocation, generation)))
    }
}

impl Pool {
    /// Allocates a buffer whose size is in the range `bytes`, rounded up to pages: at most 2 MB. It
    /// is smaller than the end of the range if no contiguous memory of that size is free. The first
    /// buffer of a block takes some 100 microseconds, 2 milliseconds without huge pages.
    ///
    /// # Errors
    /// [`AllocError::Full`]: slices have to be dropped, here or by members.
    ///
    /// # Panics
    /// If `bytes` is empty, begins at 0, or begins above 2 MB.
    pub fn allocate(&self, bytes: RangeInclusive<usize>) -> Result<Buffer, AllocError> {
        let (allocation, generation) = self.allocate_extent(bytes)?;
        Ok(Buffer::new(Extent::in_pool(self.clone(), allocation, generation)))
    }
}

impl SealedMemory {
    /// Maps the file, and returns its bytes as a slice.
    ///
    /// # Errors
    /// [`Error::Kernel`] if it cannot be mapped, or has more than 4 GB.
    pub fn into_slice(self) -> Result<Slice, Error> {
        Slice::of_file(Arc::new(self))
    }
}

impl Slice {
    /// Returns the bytes of a file.
    pub(crate) fn of_file(file: Arc<SealedMemory>) -> Result<Self, Error> {
        let extent = Extent::in_file(file)?;
        let length = extent.filled();
        Ok(Self::new(Arc::new(extent), 0, length))
    }
}

impl Buffer {
    fn new(extent: Extent) -> Self {
        let capacity = extent.allocation().bytes;
        Self { extent: Arc::new(extent), filled: 0, capacity }
    }

    /// Returns the size of the buffer, filled or not.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the memory still to be filled. Write it from its beginning on and call
    /// [`Buffer::advance`]. Its address does not change when this value is moved. It may contain
    /// bytes of another object, so never read it.
    pub fn unfilled(&mut self) -> &mut [u8] {
        // SAFETY: the range is inside the extent and unfilled; this is the only buffer of the
        // extent, and it is borrowed mutably.
        unsafe { self.extent.bytes_mut(self.filled, self.capacity - self.filled) }
    }

    /// Records that the first `count` bytes of [`Buffer::unfilled`] were written. From now on
    /// readers may read them, and they must not be written.
    ///
    /// # Panics
    /// If `count` is larger than the unfilled memory.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.capacity - self.filled);
        self.filled += count;
        self.extent.publish_filled(self.filled);
    }

    /// Copies as much of `bytes` as fits, and returns the number of bytes copied.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let spare = self.unfilled();
        let count = bytes.len().min(spare.len());
        spare[..count].copy_from_slice(&bytes[..count]);
        self.advance(count);
        count
    }

    /// Returns a slice of the filled bytes.
    ///
    /// # Panics
    /// If the range exceeds them.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.filled);
        Slice::new(self.extent.clone(), range.start, range.len())
    }

    /// Returns a view through which others can follow the filling.
    pub fn view(&self) -> BufferView {
        BufferView { extent: self.extent.clone() }
    }

    /// Ends the filling: returns all filled bytes, and releases the rest of the memory.
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

/// A read-only view of a buffer, which grows as the buffer is filled. It keeps the memory alive,
/// but notifies no reader of new bytes or of the end.
#[derive(Clone, Debug)]
pub struct BufferView {
    extent: Arc<Extent>,
}

impl BufferView {
    /// Returns a slice of the filled bytes.
    ///
    /// # Panics
    /// If the range exceeds them; the length of [`BufferView::deref`] never shrinks.
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
    fn readers_see_filled_bytes_and_the_rest_is_released() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut buffer = slab.allocate(MemoryKind::ZeroCopy, 1..=100_000, 0).unwrap();
        assert_eq!(buffer.capacity(), 25 * 4096);
        let view = buffer.view();
        assert_eq!(&view[..], b"");
        assert_eq!(buffer.write(b"one "), 4);
        let early = buffer.slice(0..3);
        assert_eq!(&view[..], b"one ");
        buffer.unfilled()[..3].copy_from_slice(b"two");
        assert_eq!(&view[..], b"one ");
        buffer.advance(3);
        assert_eq!(
            (&view[4..], &*view.slice(1..5), &buffer[..3]),
            (&b"two"[..], &b"ne t"[..], &b"one"[..])
        );
        assert_eq!(slab.stats().live, 25 * 4096);
        let whole = buffer.freeze();
        assert_eq!(slab.stats().live, 4096);
        assert_eq!((&*whole, &*early), (&b"one two"[..], &b"one"[..]));
        drop((whole, view));
        assert_eq!((&*early, slab.stats().extents), (&b"one"[..], 1));
        drop(early);
        assert_eq!((slab.stats().live, slab.stats().extents), (0, 0));
    }

    #[test]
    fn a_full_buffer_accepts_no_bytes() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut buffer = slab.allocate(MemoryKind::Copied, 1..=300, 0).unwrap();
        assert_eq!(buffer.write(&[1; 1000]), 512);
        assert_eq!((buffer.write(&[1]), buffer.unfilled().len()), (0, 0));
        let empty = slab.allocate(MemoryKind::Copied, 1..=300, 0).unwrap().freeze();
        assert_eq!((&*empty, slab.stats().live), (&b""[..], 512 + 256));
    }

    #[test]
    #[should_panic(expected = "range.end <= self.filled")]
    fn slicing_unfilled_bytes_panics() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let buffer = slab.allocate(MemoryKind::Copied, 1..=300, 0).unwrap();
        buffer.slice(0..1);
    }
}
