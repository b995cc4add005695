//! Bytes while they come in: one writes, others may read what is there.

use std::ops::{Deref, Range, RangeInclusive};
use std::sync::Arc;

use crate::error::Refusal;
use crate::kind::Kind;
use crate::run::Run;
use crate::slab::Slab;
use crate::slice::Slice;

/// Memory that is filled from its beginning on, by its one owner. What was filled never changes,
/// so slices of it can be had before all is there.
#[derive(Debug)]
pub struct Buffer {
    /// Its bytes from `filled` on are ours alone.
    run: Arc<Run>,
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
        kind: Kind,
        bytes: RangeInclusive<usize>,
        tag: u64,
    ) -> Result<Buffer, Refusal> {
        let (taken, generation) = self.take(kind, bytes, tag)?;
        Ok(Buffer::new(Run::new(self.clone(), kind, taken, generation)))
    }
}

impl Buffer {
    fn new(run: Run) -> Self {
        let capacity = run.taken().bytes;
        Self { run: Arc::new(run), filled: 0, capacity }
    }

    /// Bytes that fit, filled or not.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What is still to be filled, to be written from its beginning on and then told to
    /// [`Buffer::advance`]. It is at the same address each time, wherever this value is moved.
    /// There are bytes in it that mean nothing, maybe of another object: never read it.
    pub fn spare(&mut self) -> &mut [u8] {
        // SAFETY: the range is inside the run and not filled; this is its one buffer, borrowed for
        // change.
        unsafe { self.run.bytes_mut(self.filled, self.capacity - self.filled) }
    }

    /// Notes that the first `count` bytes of [`Buffer::spare`] were written: from now on everybody
    /// may read them and nobody may write them.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.capacity - self.filled);
        self.filled += count;
        self.run.fill(self.filled);
    }

    /// Copies as much of `bytes` as fits, and gives how many those are.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let spare = self.spare();
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
        Slice::new(self.run.clone(), range.start, range.len())
    }

    /// What others may follow the filling by.
    pub fn extent(&self) -> Extent {
        Extent { run: self.run.clone() }
    }

    /// Ends the filling: gives all that is filled, and the rest of the memory back.
    pub fn freeze(self) -> Slice {
        self.run.cut();
        Slice::new(self.run, 0, self.filled)
    }
}

/// The filled bytes.
impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.run.bytes(0, self.filled)
    }
}

/// A buffer as its readers see it: it grows under their eyes, and what they saw stays. It keeps
/// the memory, but tells nobody when there is more, nor whether more will come.
#[derive(Clone, Debug)]
pub struct Extent {
    run: Arc<Run>,
}

impl Extent {
    /// A slice of what is filled.
    ///
    /// # Panics
    /// When the range goes beyond that: the length of [`Extent::deref`] never shrinks.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.run.filled());
        Slice::new(self.run.clone(), range.start, range.len())
    }
}

/// The bytes that are filled by now.
impl Deref for Extent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.run.bytes(0, self.run.filled())
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::SLAB_BYTES_MIN;
    use crate::{Kind, Slab};

    #[test]
    fn readers_see_what_is_filled_and_the_rest_goes_back() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut buffer = slab.allocate(Kind::Referred, 1..=100_000, 0).unwrap();
        assert_eq!(buffer.capacity(), 25 * 4096);
        let extent = buffer.extent();
        assert_eq!(&extent[..], b"");
        assert_eq!(buffer.write(b"one "), 4);
        let early = buffer.slice(0..3);
        assert_eq!(&extent[..], b"one ");
        buffer.spare()[..3].copy_from_slice(b"two");
        assert_eq!(&extent[..], b"one ");
        buffer.advance(3);
        assert_eq!(
            (&extent[4..], &*extent.slice(1..5), &buffer[..3]),
            (&b"two"[..], &b"ne t"[..], &b"one"[..])
        );
        assert_eq!(slab.counters().live, 25 * 4096);
        let whole = buffer.freeze();
        assert_eq!(slab.counters().live, 4096);
        assert_eq!((&*whole, &*early), (&b"one two"[..], &b"one"[..]));
        drop((whole, extent));
        assert_eq!((&*early, slab.counters().runs), (&b"one"[..], 1));
        drop(early);
        assert_eq!((slab.counters().live, slab.counters().runs), (0, 0));
    }

    #[test]
    fn a_full_buffer_takes_no_more() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut buffer = slab.allocate(Kind::Copied, 1..=300, 0).unwrap();
        assert_eq!(buffer.write(&[1; 1000]), 512);
        assert_eq!((buffer.write(&[1]), buffer.spare().len()), (0, 0));
        let empty = slab.allocate(Kind::Copied, 1..=300, 0).unwrap().freeze();
        assert_eq!((&*empty, slab.counters().live), (&b""[..], 512 + 256));
    }

    #[test]
    #[should_panic(expected = "range.end <= self.filled")]
    fn nobody_gets_a_slice_of_what_is_not_filled() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let buffer = slab.allocate(Kind::Copied, 1..=300, 0).unwrap();
        buffer.slice(0..1);
    }
}
