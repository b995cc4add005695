//! The segments of one memory kind: where the next extent is allocated, and when a block is free
//! again.

use crate::limits::{FIT_PROBES_MAX, UNITS_PER_SEGMENT};
use crate::memory_kind::MemoryKind;
use crate::segment::Segment;

/// Number of size classes of segments, by the longest gap: one for each power of two up to
/// [`UNITS_PER_SEGMENT`].
const SIZE_CLASSES: usize = UNITS_PER_SEGMENT.ilog2() as usize + 1;

/// The memory of one kind. Offsets are in bytes from the start of the slab.
#[derive(Debug)]
pub(crate) struct FreeList {
    kind: MemoryKind,
    /// Indexed by segment number, which is the offset divided by the segment size. `None`: the
    /// block of the segment does not have this kind.
    segments: Vec<Option<Box<Segment>>>,
    /// Indexed by block number.
    blocks: Vec<BlockUse>,
    /// Numbers of the segments whose longest gap has at least `2^class` units, but fewer than
    /// `2^(class + 1)`. The last one is tried first, because its memory is the most likely to be in
    /// a CPU cache.
    size_classes: [Vec<u32>; SIZE_CLASSES],
    /// Cleared segments of blocks that were removed, so that adding a block again needs no heap
    /// allocation.
    #[expect(clippy::vec_box, reason = "they are moved back to a list of boxes")]
    spare_segments: Vec<Box<Segment>>,
    /// In units, like the counts of the segments.
    live: usize,
    tainted: usize,
    free: usize,
    /// Blocks that are being evacuated.
    pub(crate) evacuating: usize,
    /// Extents in use.
    pub(crate) extents: usize,
}

/// How much of a block is in use. One array for all blocks, because choosing a block examines all
/// of them.
#[derive(Clone, Copy, Default, Debug)]
struct BlockUse {
    state: BlockState,
    /// Units of extents in use.
    live: u32,
}

/// ```text
///   Absent ──> Present ──> Evacuating
///     ^           │            │
///     └───────────┴────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum BlockState {
    /// The block does not have this kind.
    #[default]
    Absent,
    Present,
    /// Nothing more is allocated there.
    Evacuating,
}

/// A range of allocated memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allocation {
    pub(crate) offset: u64,
    /// A multiple of the unit.
    pub(crate) bytes: usize,
}

/// A block in which nothing of this kind is in use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreedBlock {
    pub(crate) block: u32,
    /// The kernel may refer to some of the memory: it must be returned to the kernel before it is
    /// written to again.
    pub(crate) was_sent: bool,
}

impl FreeList {
    /// Creates an empty list for a slab of `blocks`.
    pub(crate) fn new(kind: MemoryKind, blocks: usize) -> Self {
        let mut segments = Vec::new();
        segments.resize_with(blocks * kind.segments_per_block(), || None);
        Self {
            kind,
            segments,
            blocks: vec![BlockUse::default(); blocks],
            size_classes: [const { Vec::new() }; SIZE_CLASSES],
            spare_segments: Vec::new(),
            live: 0,
            tainted: 0,
            free: 0,
            evacuating: 0,
            extents: 0,
        }
    }

    /// Returns the bytes of extents in use, free bytes, and tainted bytes.
    pub(crate) fn bytes(&self) -> [u64; 3] {
        [self.live, self.free, self.tainted].map(|units| (units * self.kind.unit()) as u64)
    }

    /// Adds a block to this kind: all of it is free.
    pub(crate) fn add_block(&mut self, block: u32) {
        let added = &mut self.blocks[block as usize];
        assert!(added.state == BlockState::Absent);
        added.state = BlockState::Present;
        for number in self.segments_of(block) {
            let segment = self.spare_segments.pop().unwrap_or_else(|| Box::new(Segment::new()));
            self.segments[number] = Some(segment);
            self.free += UNITS_PER_SEGMENT;
            self.link(number);
        }
    }

    /// Allocates `bytes`, rounded up to units. Returns `None` if no segment has such a gap.
    pub(crate) fn allocate(
        &mut self,
        bytes: usize,
        generation: u64,
        tag: u64,
    ) -> Option<Allocation> {
        let units = bytes.div_ceil(self.kind.unit());
        let number = self.find_segment(units)?;
        Some(self.allocate_in(number, units, generation, tag))
    }

    /// Allocates a gap from a segment of the highest size class in use: the longest gap, or one of
    /// at least half its length. Allocates `min` to `max` bytes. To be called after
    /// [`FreeList::allocate`] found no gap of `max`.
    pub(crate) fn allocate_longest(
        &mut self,
        min: usize,
        max: usize,
        generation: u64,
        tag: u64,
    ) -> Option<Allocation> {
        let class = self.size_classes.iter().rev().find(|class| !class.is_empty())?;
        let number = *class.last()? as usize;
        let units = self.segment(number).longest_gap.min(max.div_ceil(self.kind.unit()));
        let enough = units * self.kind.unit() >= min;
        enough.then(|| self.allocate_in(number, units, generation, tag))
    }

    fn allocate_in(
        &mut self,
        number: usize,
        units: usize,
        generation: u64,
        tag: u64,
    ) -> Allocation {
        self.unlink(number);
        let start = self.segment_mut(number).allocate(units, generation, tag);
        self.link(number);
        self.free -= units;
        self.live += units;
        self.blocks[number / self.kind.segments_per_block()].live += units as u32;
        self.extents += 1;
        let offset = number * self.kind.segment_bytes() + start * self.kind.unit();
        Allocation { offset: offset as u64, bytes: units * self.kind.unit() }
    }

    /// Returns a segment with a gap of `units`. It is from the lowest size class in which one is
    /// found, so that long gaps stay long. In the class in which only some segments fit, at most
    /// [`FIT_PROBES_MAX`] are examined.
    fn find_segment(&self, units: usize) -> Option<usize> {
        let sure = units.next_power_of_two().ilog2() as usize;
        let unsure = units.ilog2() as usize;
        let fits = |number: &&u32| self.segment(**number as usize).longest_gap >= units;
        let close = self.size_classes[unsure].iter().rev().take(FIT_PROBES_MAX).find(fits);
        let found =
            close.or_else(|| self.size_classes.get(sure..)?.iter().find_map(|class| class.last()));
        found.map(|number| *number as usize)
    }

    /// Releases an extent, and returns its block if nothing in it is in use any more.
    pub(crate) fn release(
        &mut self,
        allocation: Allocation,
        generation: u64,
        was_sent: bool,
    ) -> Option<FreedBlock> {
        self.extents -= 1;
        self.release_units(allocation, generation, was_sent)
    }

    /// Releases the tail of an extent, of which no slice was ever made.
    pub(crate) fn release_tail(&mut self, end: Allocation, generation: u64) {
        let freed = self.release_units(end, generation, false);
        assert!(freed.is_none(), "the rest of the extent is in use");
    }

    fn release_units(
        &mut self,
        allocation: Allocation,
        generation: u64,
        was_sent: bool,
    ) -> Option<FreedBlock> {
        let (number, start, units) = self.locate(allocation);
        self.unlink(number);
        let segment = self.segment_mut(number);
        segment.release(start, units, generation, was_sent);
        let tainted = was_sent || segment.is_evacuating;
        self.live -= units;
        *(if tainted { &mut self.tainted } else { &mut self.free }) += units;
        self.link(number);
        let block = number / self.kind.segments_per_block();
        self.blocks[block].live -= units as u32;
        (self.blocks[block].live == 0).then(|| self.remove_block(block as u32))
    }

    /// Removes an unused block from this kind.
    fn remove_block(&mut self, block: u32) -> FreedBlock {
        let mut was_sent = false;
        for number in self.segments_of(block) {
            self.unlink(number);
            let mut segment = self.segments[number].take().expect("the block is of this kind");
            self.free -= segment.free_units();
            self.tainted -= segment.tainted;
            was_sent |= segment.was_sent;
            if self.spare_segments.len() < self.kind.segments_per_block() {
                segment.clear();
                self.spare_segments.push(segment);
            }
        }
        let removed = std::mem::take(&mut self.blocks[block as usize]);
        self.evacuating -= usize::from(removed.state == BlockState::Evacuating);
        FreedBlock { block, was_sent }
    }

    /// See [`Segment::set_generation`].
    pub(crate) fn set_generation(&mut self, allocation: Allocation, before: u64, generation: u64) {
        let (number, start, units) = self.locate(allocation);
        self.segment_mut(number).set_generation(start, units, before, generation);
    }

    /// Returns whether one extent in use has this `generation` and covers all `bytes` from `offset`
    /// on.
    pub(crate) fn has_generation(&self, offset: u64, bytes: usize, generation: u64) -> bool {
        let (size, unit) = (self.kind.segment_bytes() as u64, self.kind.unit());
        let Some(Some(segment)) = self.segments.get((offset / size) as usize) else {
            return false;
        };
        let at = (offset % size) as usize;
        let end = (at + bytes.max(1)).div_ceil(unit);
        end <= UNITS_PER_SEGMENT && segment.has_generation(at / unit, end - at / unit, generation)
    }

    /// Returns the block with the fewest bytes in use, of those that are not being evacuated: the
    /// number of these bytes, and the number of the block.
    pub(crate) fn least_used_block(&self) -> Option<(u64, u32)> {
        let present = self.blocks.iter().zip(0..).filter(|(of, _)| of.state == BlockState::Present);
        let least = present.map(|(of, block)| (of.live, block)).min()?;
        Some((u64::from(least.0) * self.kind.unit() as u64, least.1))
    }

    /// Stops allocating from a block, and returns the tags of the extents in it.
    pub(crate) fn start_evacuation(&mut self, block: u32) -> Vec<u64> {
        let evacuated = &mut self.blocks[block as usize];
        assert!(evacuated.state == BlockState::Present);
        evacuated.state = BlockState::Evacuating;
        self.evacuating += 1;
        let mut tags = Vec::new();
        for number in self.segments_of(block) {
            self.unlink(number);
            let segment = self.segment_mut(number);
            let free = segment.free_units();
            segment.start_evacuation();
            tags.extend(segment.held_tags());
            self.free -= free;
            self.tainted += free;
        }
        tags
    }

    /// Returns the segment number of an allocation, its first unit there, and its length in units.
    fn locate(&self, allocation: Allocation) -> (usize, usize, usize) {
        let (size, unit) = (self.kind.segment_bytes() as u64, self.kind.unit());
        let start = (allocation.offset % size) as usize;
        assert!(start.is_multiple_of(unit) && allocation.bytes.is_multiple_of(unit));
        ((allocation.offset / size) as usize, start / unit, allocation.bytes / unit)
    }

    /// Returns the numbers of the segments of a block.
    fn segments_of(&self, block: u32) -> std::ops::Range<usize> {
        let first = block as usize * self.kind.segments_per_block();
        first..first + self.kind.segments_per_block()
    }

    fn segment(&self, number: usize) -> &Segment {
        self.segments[number].as_ref().expect("the block is of this kind")
    }

    fn segment_mut(&mut self, number: usize) -> &mut Segment {
        self.segments[number].as_mut().expect("the block is of this kind")
    }

    /// Adds a segment to the list of its size class, unless it is full.
    fn link(&mut self, number: usize) {
        let longest = self.segment(number).longest_gap;
        if longest == 0 {
            return;
        }
        let class = &mut self.size_classes[longest.ilog2() as usize];
        let index = class.len() as u32;
        class.push(number as u32);
        self.segment_mut(number).list_index = index;
    }

    /// Removes a segment from its list. To be called before its longest gap changes.
    fn unlink(&mut self, number: usize) {
        let (longest, index) = (self.segment(number).longest_gap, self.segment(number).list_index);
        if longest == 0 {
            return;
        }
        let class = &mut self.size_classes[longest.ilog2() as usize];
        let out = class.swap_remove(index as usize);
        assert_eq!(out as usize, number, "a segment knows its index");
        if let Some(moved) = class.get(index as usize).copied() {
            self.segment_mut(moved as usize).list_index = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BLOCK_BYTES;
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    #[test]
    fn an_unused_block_is_removed() {
        let mut free_list = FreeList::new(MemoryKind::Copied, 3);
        assert_eq!(free_list.allocate(1, 1, 0), None);
        free_list.add_block(1);
        let one = free_list.allocate(1, 1, 0).unwrap();
        assert_eq!(one.bytes, 256);
        let other = free_list.allocate(20_000, 2, 0).unwrap();
        assert_eq!(other.bytes, 20_224);
        assert!(
            free_list.has_generation(one.offset, 256, 1)
                && !free_list.has_generation(one.offset, 257, 1)
        );
        assert_eq!(free_list.release(one, 1, false), None);
        let freed = free_list.release(other, 2, false);
        assert_eq!(freed, Some(FreedBlock { block: 1, was_sent: false }));
        assert_eq!((free_list.bytes(), free_list.extents), ([0; 3], 0));
        assert!(!free_list.has_generation(one.offset, 1, 1));
        assert_eq!(free_list.allocate(1, 3, 0), None);
    }

    #[test]
    fn the_longest_gap_is_allocated_if_none_is_long_enough() {
        let mut free_list = FreeList::new(MemoryKind::ZeroCopy, 2);
        free_list.add_block(0);
        let whole = free_list.allocate(BLOCK_BYTES, 1, 0).unwrap();
        free_list.add_block(1);
        let half = free_list.allocate(BLOCK_BYTES / 2 + 1, 2, 0).unwrap();
        assert_eq!(free_list.allocate(BLOCK_BYTES / 2, 3, 0), None);
        assert_eq!(free_list.allocate_longest(BLOCK_BYTES / 2, BLOCK_BYTES, 3, 0), None);
        let rest = free_list.allocate_longest(1, BLOCK_BYTES, 3, 0).unwrap();
        assert_eq!(rest.bytes, BLOCK_BYTES - half.bytes);
        assert_eq!(free_list.allocate_longest(1, BLOCK_BYTES, 4, 0), None);
        assert_eq!(
            free_list.release(whole, 1, true),
            Some(FreedBlock { block: 0, was_sent: true })
        );
    }

    #[test]
    fn the_least_used_block_is_evacuated() {
        for (kind, was_sent) in [
            (MemoryKind::ZeroCopy, true),
            (MemoryKind::ZeroCopy, false),
            (MemoryKind::Copied, false),
        ] {
            let mut free_list = FreeList::new(kind, 40);
            assert_eq!(free_list.least_used_block(), None);
            let mut extents = Vec::new();
            for block in [7, 9, 4] {
                free_list.add_block(block);
                for _ in 0..8 * kind.segments_per_block() as u64 {
                    let generation = extents.len() as u64 + 1;
                    let allocation =
                        free_list.allocate(64 * kind.unit(), generation, 100 + generation);
                    extents.push((allocation.unwrap(), generation));
                }
            }
            let (in_nine, others): (Vec<_>, Vec<_>) = extents
                .into_iter()
                .partition(|(extent, _)| extent.offset / BLOCK_BYTES as u64 == 9);
            let (kept, given) = in_nine.split_at(2);
            for (extent, generation) in given {
                assert_eq!(free_list.release(*extent, *generation, was_sent), None);
            }
            let held = 128 * kind.unit() as u64;
            assert_eq!(free_list.least_used_block(), Some((held, 9)));
            let tags = free_list.start_evacuation(9);
            assert_eq!(tags, [100 + kept[0].1, 100 + kept[1].1]);
            assert_eq!(
                (free_list.evacuating, free_list.bytes()[1]),
                (1, 0),
                "nothing can be allocated there"
            );
            assert_eq!(free_list.allocate(1, 1000, 0), None);
            assert_eq!(free_list.least_used_block(), Some((BLOCK_BYTES as u64, 4)));
            assert_eq!(free_list.release(kept[1].0, kept[1].1, false), None);
            let freed = free_list.release(kept[0].0, kept[0].1, false);
            assert_eq!(freed, Some(FreedBlock { block: 9, was_sent }));
            assert_eq!((free_list.evacuating, free_list.bytes()[2]), (0, 0));
            assert_eq!(free_list.extents, others.len());
            free_list.add_block(9);
            assert!(free_list.allocate(1, 1000, 0).is_some());
        }
    }

    /// In any order of allocations and releases, no two extents overlap, no tainted memory is
    /// allocated again, and the sums are right.
    #[test]
    fn extents_never_overlap() {
        for seed in 0..if cfg!(miri) { 0 } else { 16 } {
            println!("seed {seed}");
            let kind = if seed % 2 == 0 { MemoryKind::Copied } else { MemoryKind::ZeroCopy };
            play(kind, &mut Pcg64Mcg::seed_from_u64(seed));
        }
    }

    fn play(kind: MemoryKind, random: &mut Pcg64Mcg) {
        const BLOCKS: usize = 4;
        let mut free_list = FreeList::new(kind, BLOCKS);
        // The generation of each unit; 0: free, or its block is absent; `u64::MAX`: tainted.
        let mut model = vec![0_u64; BLOCKS * BLOCK_BYTES / kind.unit()];
        let mut ready: Vec<u32> = (0..BLOCKS as u32).collect();
        let mut extents: Vec<(Allocation, u64)> = Vec::new();
        let units = |allocation: &Allocation| {
            let start = allocation.offset as usize / kind.unit();
            start..start + allocation.bytes / kind.unit()
        };
        for generation in 1..4000 {
            if random.next_u64() % 5 < 3 {
                let bytes = 1 + random.next_u64() as usize % (kind.bytes_max() / 4);
                let mut allocation = free_list.allocate(bytes, generation, 0);
                if allocation.is_none() {
                    match ready.pop() {
                        Some(block) => free_list.add_block(block),
                        None => allocation = free_list.allocate_longest(1, bytes, generation, 0),
                    }
                }
                let Some(allocation) = allocation else { continue };
                assert!(model[units(&allocation)].iter().all(|of| *of == 0));
                model[units(&allocation)].fill(generation);
                extents.push((allocation, generation));
            } else if !extents.is_empty() {
                let (allocation, of) =
                    extents.swap_remove(random.next_u64() as usize % extents.len());
                let tainted = kind == MemoryKind::ZeroCopy && random.next_u64().is_multiple_of(3);
                model[units(&allocation)].fill(if tainted { u64::MAX } else { 0 });
                if let Some(freed) = free_list.release(allocation, of, tainted) {
                    let whole = freed.block as usize * BLOCK_BYTES / kind.unit();
                    let whole = &mut model[whole..][..BLOCK_BYTES / kind.unit()];
                    assert_eq!(freed.was_sent, whole.contains(&u64::MAX));
                    assert!(whole.iter().all(|of| [0, u64::MAX].contains(of)));
                    whole.fill(0);
                    ready.push(freed.block);
                }
            }
            if generation % 64 > 0 {
                continue;
            }
            let count = |wanted: &dyn Fn(u64) -> bool| {
                (model.iter().filter(|of| wanted(**of)).count() * kind.unit()) as u64
            };
            let [live, free, tainted] = free_list.bytes();
            assert_eq!(live, count(&|of| of != 0 && of != u64::MAX));
            assert_eq!(tainted, count(&|of| of == u64::MAX));
            let used = (BLOCKS - ready.len()) * BLOCK_BYTES;
            assert_eq!(live + free + tainted, used as u64);
            assert_eq!(free_list.extents, extents.len());
        }
    }
}
