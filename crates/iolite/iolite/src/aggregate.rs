//! Mutable sequences of immutable slices.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

use crate::buffer::Buffer;
use crate::error::AllocError;
use crate::limits::COPY_UNITS_MIN;
use crate::memory_kind::MemoryKind;
use crate::pool::Pool;
use crate::slab::Slab;
use crate::slice::Slice;

/// The bytes of a sequence of slices. Editing moves references, not bytes; only
/// [`Aggregate::write`], [`Aggregate::copy`] and [`Aggregate::to_vec`] copy bytes. Slices that it
/// shares with others stay as they are. Positions count bytes from its beginning.
#[derive(Clone, Debug, Default)]
pub struct Aggregate {
    /// No slice is empty, each starts where the previous one ends, and the first one at `start`.
    parts: VecDeque<PositionedSlice>,
    /// The coordinate of the first byte. Parts keep their coordinates when others are added or
    /// removed in front of them, so that a position is found by binary search.
    start: i64,
    /// Number of bytes in all parts.
    length: u64,
}

#[derive(Clone, Debug)]
struct PositionedSlice {
    start: i64,
    slice: Slice,
}

impl Aggregate {
    /// Creates an empty aggregate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the slices in order, none of them empty.
    pub fn slices(&self) -> impl DoubleEndedIterator<Item = &Slice> + Clone {
        self.parts.iter().map(|part| &part.slice)
    }

    /// Returns the slice that contains a position, and the offset in it; `None` at the end and
    /// beyond.
    pub fn at(&self, position: u64) -> Option<(&Slice, usize)> {
        let (index, within) = self.find(position)?;
        Some((&self.parts[index].slice, within))
    }

    /// Appends a slice. If it continues the last slice in the same memory, that slice is extended.
    pub fn append(&mut self, slice: Slice) {
        if slice.is_empty() {
            return;
        }
        let start = self.start + self.length as i64;
        self.length += slice.len() as u64;
        match self.parts.back_mut() {
            Some(last) if last.slice.is_followed_by(&slice) => last.slice.extend(&slice),
            _ => self.parts.push_back(PositionedSlice { start, slice }),
        }
    }

    /// Prepends a slice.
    pub fn prepend(&mut self, slice: Slice) {
        if slice.is_empty() {
            return;
        }
        self.start -= slice.len() as i64;
        self.length += slice.len() as u64;
        self.parts.push_front(PositionedSlice { start: self.start, slice });
    }

    /// Appends all of another aggregate.
    pub fn concatenate(&mut self, other: Self) {
        other.parts.into_iter().for_each(|part| self.append(part.slice));
    }

    /// Keeps the first `length` bytes, or all if there are no more.
    pub fn truncate(&mut self, length: u64) {
        drop(self.split_off(length.min(self.length)));
    }

    /// Drops the first `count` bytes, or all if there are no more.
    pub fn skip(&mut self, count: u64) {
        *self = self.split_off(count.min(self.length));
    }

    /// Splits the aggregate: keeps the bytes before `position` and returns the rest.
    ///
    /// # Panics
    /// If `position` is beyond the end.
    #[must_use]
    pub fn split_off(&mut self, position: u64) -> Self {
        assert!(position <= self.length);
        let cut = self.start + position as i64;
        let mut rest = Self { parts: VecDeque::new(), start: cut, length: self.length - position };
        if let Some((index, within)) = self.find(position) {
            rest.parts = self.parts.split_off(index);
            if within > 0 {
                let first = &mut rest.parts[0];
                let before = first.slice.slice(0..within);
                self.parts.push_back(PositionedSlice { start: first.start, slice: before });
                first.slice = first.slice.slice(within..first.slice.len());
                first.start = cut;
            }
        }
        self.length = position;
        rest
    }

    /// Returns a part of the aggregate, which shares its slices.
    ///
    /// # Panics
    /// If the range exceeds the aggregate.
    pub fn slice(&self, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= self.length);
        let mut part = Self::new();
        let mut position = range.start;
        while position < range.end {
            let (found, within) = self.at(position).expect("the position is before the end");
            let count = ((found.len() - within) as u64).min(range.end - position);
            part.append(found.slice(within..within + count as usize));
            position += count;
        }
        part
    }

    /// Replaces a range by `with`, which may have another length.
    ///
    /// # Panics
    /// If the range exceeds the aggregate.
    pub fn replace(&mut self, range: Range<u64>, with: Self) {
        assert!(range.start <= range.end && range.end <= self.length);
        let rest = self.split_off(range.end);
        self.truncate(range.start);
        self.concatenate(with);
        self.concatenate(rest);
    }

    /// Overwrites the bytes from `position` on with `bytes`. A slice that has no other holder and
    /// was never sent zero-copy is changed in place. For other slices, the changed part goes into
    /// new memory of `slab` (see [`Slab::allocate`]), which is chained between the unchanged parts.
    /// Call [`Aggregate::copy`] first if the changes are widely spread.
    ///
    /// # Errors
    /// If there is no memory; then nothing was changed.
    ///
    /// # Panics
    /// If the aggregate has fewer bytes.
    pub fn write(
        &mut self,
        position: u64,
        bytes: &[u8],
        slab: &Slab,
        kind: MemoryKind,
        tag: u64,
    ) -> Result<(), AllocError> {
        let end = position + bytes.len() as u64;
        assert!(end <= self.length);
        // All memory is allocated first, so that a failure changes nothing.
        let mut fresh = VecDeque::new();
        self.for_each_part(position..end, |slice, within, from| {
            if slice.sole_extent().is_none() {
                let changed = &bytes[from..from + within.len()];
                fresh.push_back((position + from as u64, copy_of(&[changed], slab, kind, tag)?));
            }
            Ok(())
        })?;
        self.for_each_part(position..end, |slice, within, from| {
            if let Some(place) = slice.get_mut() {
                place[within.clone()].copy_from_slice(&bytes[from..from + within.len()]);
            }
            Ok(())
        })?;
        for (at, with) in fresh {
            self.replace(at..at + with.length, with);
        }
        Ok(())
    }

    /// Calls `visit` for each slice in a range, with the part of the range in the slice and the
    /// offset of that part within the range.
    fn for_each_part(
        &mut self,
        range: Range<u64>,
        mut visit: impl FnMut(&mut Slice, Range<usize>, usize) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let mut position = range.start;
        while position < range.end {
            let (index, within) = self.find(position).expect("the position is before the end");
            let slice = &mut self.parts[index].slice;
            let count = ((slice.len() - within) as u64).min(range.end - position) as usize;
            visit(slice, within..within + count, (position - range.start) as usize)?;
            position += count as u64;
        }
        Ok(())
    }

    /// Returns the same bytes in new memory of `slab` (see [`Slab::allocate`]), in as few slices as
    /// possible: to empty a block that is being evacuated, or to defragment an aggregate.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn copy(&self, slab: &Slab, kind: MemoryKind, tag: u64) -> Result<Self, AllocError> {
        let parts: Vec<&[u8]> = self.slices().map(|slice| &**slice).collect();
        copy_of(&parts, slab, kind, tag)
    }

    /// Returns the same bytes in new memory of a pool, which its members may read.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn copy_to_pool(&self, pool: &Pool) -> Result<Self, AllocError> {
        let parts: Vec<&[u8]> = self.slices().map(|slice| &**slice).collect();
        copy_to_pool(&parts, pool)
    }

    /// Copies bytes into memory of a slab that is sent by copying. Prepares a block if none is
    /// ready.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn from_bytes(bytes: &[u8], slab: &Slab) -> Result<Self, AllocError> {
        slab.with_ready_block(|| copy_of(&[bytes], slab, MemoryKind::Copied, 0))
    }

    /// Copies bytes into memory of a pool.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn from_bytes_in_pool(bytes: &[u8], pool: &Pool) -> Result<Self, AllocError> {
        copy_to_pool(&[bytes], pool)
    }

    /// Copies the bytes from `position` on into `bytes`. Returns `None`, and copies some or none of
    /// them, if there are fewer.
    pub fn read_at(&self, mut position: u64, mut bytes: &mut [u8]) -> Option<()> {
        while !bytes.is_empty() {
            let (slice, within) = self.at(position)?;
            let found = &slice[within..];
            let count = found.len().min(bytes.len());
            let (now, rest) = bytes.split_at_mut(count);
            now.copy_from_slice(&found[..count]);
            (position, bytes) = (position + count as u64, rest);
        }
        Some(())
    }

    /// Returns all bytes as a copy on the heap.
    pub fn to_vec(&self) -> Vec<u8> {
        let parts: Vec<&[u8]> = self.slices().map(|slice| &**slice).collect();
        parts.concat()
    }

    /// Returns the index of the part that contains a position, and the offset in it.
    fn find(&self, position: u64) -> Option<(usize, usize)> {
        if position >= self.length {
            return None;
        }
        let place = self.start + position as i64;
        let is_before = |part: &PositionedSlice| part.start + part.slice.len() as i64 <= place;
        let index = self.parts.partition_point(is_before);
        Some((index, (place - self.parts[index].start) as usize))
    }
}

fn copy_to_pool(parts: &[&[u8]], pool: &Pool) -> Result<Aggregate, AllocError> {
    let bytes_min = COPY_UNITS_MIN * MemoryKind::ZeroCopy.unit();
    copy_with(parts, bytes_min, |bytes| pool.allocate(bytes))
}

/// Copies bytes into new memory of a slab.
pub(crate) fn copy_of(
    parts: &[&[u8]],
    slab: &Slab,
    kind: MemoryKind,
    tag: u64,
) -> Result<Aggregate, AllocError> {
    copy_with(parts, COPY_UNITS_MIN * kind.unit(), |bytes| slab.allocate(kind, bytes, tag))
}

/// Copies bytes into buffers of at least `bytes_min`, or fewer at the end.
fn copy_with(
    parts: &[&[u8]],
    bytes_min: usize,
    allocate: impl Fn(RangeInclusive<usize>) -> Result<Buffer, AllocError>,
) -> Result<Aggregate, AllocError> {
    let mut copy = Aggregate::new();
    let mut rest: usize = parts.iter().map(|part| part.len()).sum();
    let mut buffer: Option<Buffer> = None;
    for part in parts {
        let mut part = *part;
        while !part.is_empty() {
            let filling = match &mut buffer {
                Some(buffer) => buffer,
                None => buffer.insert(allocate(rest.min(bytes_min)..=rest)?),
            };
            let count = filling.write(part);
            (part, rest) = (&part[count..], rest - count);
            if filling.unfilled().is_empty() {
                copy.append(buffer.take().expect("the buffer was filled").freeze());
            }
        }
    }
    if let Some(last) = buffer {
        copy.append(last.freeze());
    }
    Ok(copy)
}

impl From<Slice> for Aggregate {
    fn from(slice: Slice) -> Self {
        let mut aggregate = Self::new();
        aggregate.append(slice);
        aggregate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SLAB_BYTES_MIN;
    use crate::test_slices::slice;

    fn words(slab: &Slab) -> Aggregate {
        let mut words = Aggregate::from(slice(slab, b"two "));
        words.append(slice(slab, b"three"));
        words.prepend(slice(slab, b"one "));
        words
    }

    #[test]
    fn aggregates_are_split_and_concatenated() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut words = words(&slab);
        assert_eq!((words.to_vec(), words.len()), (b"one two three".to_vec(), 13));
        let (found, within) = words.at(5).unwrap();
        assert_eq!((&found[..], within), (&b"two "[..], 1));
        assert!(words.at(13).is_none());
        let rest = words.split_off(6);
        assert_eq!((words.to_vec(), rest.to_vec()), (b"one tw".to_vec(), b"o three".to_vec()));
        let mut turned = rest.slice(2..7);
        turned.concatenate(words.clone());
        assert_eq!(turned.to_vec(), b"threeone tw");
        turned.skip(7);
        turned.truncate(3);
        assert_eq!(turned.to_vec(), b"e t");
        turned.replace(1..2, rest);
        assert_eq!(turned.to_vec(), b"eo threet");
        assert_eq!(slab.stats().extents, 3, "no byte was copied");
    }

    #[test]
    fn adjacent_slices_of_a_buffer_are_joined() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut buffer = slab.allocate(MemoryKind::Copied, 1..=600, 0).unwrap();
        let mut filled = Aggregate::new();
        for part in [&b"a"[..], b"", b"bc", b"def"] {
            let start = buffer.len();
            buffer.write(part);
            filled.append(buffer.slice(start..buffer.len()));
        }
        assert_eq!((filled.to_vec(), filled.slices().count()), (b"abcdef".to_vec(), 1));
    }

    #[test]
    fn shared_slices_are_chained_and_sole_ones_changed_in_place() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut changed = words(&slab);
        let kept = changed.at(4).unwrap().0.clone();
        changed.write(2, b"E-TWO-T", &slab, MemoryKind::Copied, 0).unwrap();
        assert_eq!(changed.to_vec(), b"onE-TWO-Three");
        assert_eq!(&*kept, b"two ");
        assert_eq!((slab.stats().extents, changed.slices().count()), (4, 3));
        changed.write(5, b"w", &slab, MemoryKind::Copied, 0).unwrap();
        assert_eq!((slab.stats().extents, changed.slices().count()), (4, 3), "in place");
        let snapshot = changed.clone();
        changed.write(5, b"WO", &slab, MemoryKind::Copied, 0).unwrap();
        assert_eq!((changed.slices().count(), slab.stats().extents), (5, 5));
        assert_eq!(snapshot.to_vec(), b"onE-TwO-Three");
        assert_eq!(changed.to_vec(), b"onE-TWO-Three");
        let copy = changed.copy(&slab, MemoryKind::ZeroCopy, 0);
        assert_eq!(copy.unwrap_err(), AllocError::NotReady, "the other block is not ready");
        assert_eq!(slab.prefault(), crate::PrefaultOutcome::Prefaulted);
        let copy = changed.copy(&slab, MemoryKind::ZeroCopy, 0).unwrap();
        assert_eq!((copy.to_vec(), copy.slices().count()), (changed.to_vec(), 1));
    }

    #[test]
    fn a_failed_write_changes_nothing() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut bytes = words(&slab);
        let snapshot = bytes.clone();
        let mut held = Vec::new();
        while let Ok(buffer) =
            slab.allocate(MemoryKind::Copied, 1..=MemoryKind::Copied.bytes_max(), 0)
        {
            held.push(buffer);
            slab.prefault();
        }
        assert_eq!(bytes.write(0, b"O", &slab, MemoryKind::Copied, 0), Err(AllocError::Full));
        assert_eq!((bytes.to_vec(), bytes.slices().count()), (b"one two three".to_vec(), 3));
        drop(snapshot);
        bytes.write(0, b"O", &slab, MemoryKind::Copied, 0).unwrap();
        assert_eq!(bytes.to_vec(), b"One two three");
    }
}
