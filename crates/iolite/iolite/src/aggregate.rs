//! Slices in a row: what changes where bytes do not.

use std::collections::VecDeque;
use std::ops::Range;

use crate::buffer::Buffer;
use crate::error::AllocError;
use crate::limits::COPY_UNITS_MIN;
use crate::memory_kind::MemoryKind;
use crate::slab::Slab;
use crate::slice::Slice;

/// Bytes that are the slices of a list, one behind the other. Everything that changes it moves
/// references, not bytes; slices that it shares with others stay as they are. Positions count
/// bytes from its beginning.
#[derive(Clone, Debug, Default)]
pub struct Aggregate {
    /// None is empty, each begins where the one before ends, and the first at `start`.
    parts: VecDeque<PositionedSlice>,
    /// The place of the first byte, on a scale on which pieces keep their places whatever is put
    /// in front of them or taken away there. So a position is found by halving.
    start: i64,
    /// Bytes of all pieces.
    length: u64,
}

#[derive(Clone, Debug)]
struct PositionedSlice {
    start: i64,
    slice: Slice,
}

impl Aggregate {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes in it.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The slices in their order, none of them empty.
    pub fn slices(&self) -> impl DoubleEndedIterator<Item = &Slice> + Clone {
        self.parts.iter().map(|part| &part.slice)
    }

    /// The slice that a position is in, and where in it; `None` at the end and beyond.
    pub fn at(&self, position: u64) -> Option<(&Slice, usize)> {
        let (index, within) = self.find(position)?;
        Some((&self.parts[index].slice, within))
    }

    /// Puts a slice at the end. One that continues the last slice, in the same memory, makes that
    /// longer.
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

    /// Puts a slice at the beginning.
    pub fn prepend(&mut self, slice: Slice) {
        if slice.is_empty() {
            return;
        }
        self.start -= slice.len() as i64;
        self.length += slice.len() as u64;
        self.parts.push_front(PositionedSlice { start: self.start, slice });
    }

    /// Puts all of another at the end.
    pub fn concatenate(&mut self, other: Self) {
        other.parts.into_iter().for_each(|part| self.append(part.slice));
    }

    /// Keeps the first `length` bytes; all, if there are no more.
    pub fn truncate(&mut self, length: u64) {
        drop(self.split_off(length.min(self.length)));
    }

    /// Drops the first `count` bytes; all, if there are no more.
    pub fn skip(&mut self, count: u64) {
        *self = self.split_off(count.min(self.length));
    }

    /// Cuts it in two: keeps what is before `position`, and gives the rest.
    ///
    /// # Panics
    /// When `position` is beyond the end.
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

    /// A part of it, that shares its slices.
    ///
    /// # Panics
    /// When the range goes beyond it.
    pub fn slice(&self, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= self.length);
        let mut part = Self::new();
        let mut position = range.start;
        while position < range.end {
            let (found, within) = self.at(position).expect("it is before the end");
            let count = ((found.len() - within) as u64).min(range.end - position);
            part.append(found.slice(within..within + count as usize));
            position += count;
        }
        part
    }

    /// Puts `with`, of any length, in the place of a range.
    ///
    /// # Panics
    /// When the range goes beyond it.
    pub fn replace(&mut self, range: Range<u64>, with: Self) {
        assert!(range.start <= range.end && range.end <= self.length);
        let rest = self.split_off(range.end);
        self.truncate(range.start);
        self.concatenate(with);
        self.concatenate(rest);
    }

    /// Puts `bytes` in the place of as many from `position` on. A slice that nobody else holds and
    /// that was never sent by reference is changed in place; of others, the changed part is new
    /// memory of `slab` (see [`Slab::allocate`]), chained between what stays. For changes that are
    /// spread widely, [`Aggregate::copy`] first.
    ///
    /// # Errors
    /// When there is no memory; then nothing was changed.
    ///
    /// # Panics
    /// When there are not so many bytes.
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
        // First all memory is taken, so that a refusal changes nothing.
        let mut fresh = VecDeque::new();
        self.for_each_part(position..end, |slice, within, from| {
            if !slice.is_sole() {
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

    /// Goes over the slices in which a range lies: each, the part of the range in it, and where
    /// that is within the range.
    fn for_each_part(
        &mut self,
        range: Range<u64>,
        mut visit: impl FnMut(&mut Slice, Range<usize>, usize) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let mut position = range.start;
        while position < range.end {
            let (index, within) = self.find(position).expect("it is before the end");
            let slice = &mut self.parts[index].slice;
            let count = ((slice.len() - within) as u64).min(range.end - position) as usize;
            visit(slice, within..within + count, (position - range.start) as usize)?;
            position += count as u64;
        }
        Ok(())
    }

    /// The same bytes in new memory of `slab` (see [`Slab::allocate`]), in as few slices as it has
    /// room for: to let memory go that was condemned, or to put together what is scattered.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn copy(&self, slab: &Slab, kind: MemoryKind, tag: u64) -> Result<Self, AllocError> {
        let parts: Vec<&[u8]> = self.slices().map(|slice| &**slice).collect();
        copy_of(&parts, slab, kind, tag)
    }

    /// All bytes, as a copy on the heap.
    pub fn to_vec(&self) -> Vec<u8> {
        self.slices().flat_map(|slice| slice.iter().copied()).collect()
    }

    /// The number of the piece that a position is in, and where in it.
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

/// Copies bytes into new memory.
pub(crate) fn copy_of(
    parts: &[&[u8]],
    slab: &Slab,
    kind: MemoryKind,
    tag: u64,
) -> Result<Aggregate, AllocError> {
    let mut copy = Aggregate::new();
    let mut rest: usize = parts.iter().map(|part| part.len()).sum();
    let mut buffer: Option<Buffer> = None;
    for part in parts {
        let mut part = *part;
        while !part.is_empty() {
            let filling = match &mut buffer {
                Some(buffer) => buffer,
                None => {
                    let least = rest.min(COPY_UNITS_MIN * kind.unit());
                    buffer.insert(slab.allocate(kind, least..=rest, tag)?)
                }
            };
            let count = filling.write(part);
            (part, rest) = (&part[count..], rest - count);
            if filling.unfilled().is_empty() {
                copy.append(buffer.take().expect("it was filled").freeze());
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
    fn aggregates_are_cut_and_put_together() {
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
    fn slices_of_one_buffer_are_joined_again() {
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
    fn what_others_hold_is_chained_and_what_nobody_holds_is_changed_in_place() {
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
    fn a_refused_change_changes_nothing() {
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
