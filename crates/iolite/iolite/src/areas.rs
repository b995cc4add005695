//! All areas of one kind: where the next run is taken from, and when a block has nothing left.

use crate::area::Area;
use crate::kind::Kind;
use crate::limits::{LOOKS_MAX, UNITS};

/// Lists of areas by how much they have side by side: each power of two up to [`UNITS`] has one.
const LEVELS: usize = UNITS.ilog2() as usize + 1;

/// The memory of one kind. Places are offsets in bytes from the start of the slab.
#[derive(Debug)]
pub(crate) struct Areas {
    kind: Kind,
    /// By their number, which is their offset divided by their size; `None`: the block that they
    /// are in is not of this kind.
    areas: Vec<Option<Box<Area>>>,
    /// By the number of a block.
    blocks: Vec<Block>,
    /// Numbers of the areas whose longest free stretch has `2^level` units or more, but not
    /// `2^(level + 1)`. The last is tried first: its memory is the warmest.
    levels: [Vec<u32>; LEVELS],
    /// Cleared areas of blocks that left: a block that comes and goes costs no allocation.
    #[expect(clippy::vec_box, reason = "they go back to where boxes are")]
    spare: Vec<Box<Area>>,
    /// In units, as those of the areas.
    live: usize,
    spoiled: usize,
    free: usize,
    /// Blocks that were condemned and are still here.
    pub(crate) condemned: usize,
    /// Runs that somebody holds.
    pub(crate) runs: usize,
}

/// What is held of a block, in one place for all its areas: to pick one means to look at all.
#[derive(Clone, Copy, Default, Debug)]
struct Block {
    state: State,
    /// Units of runs that somebody holds.
    live: u32,
}

/// ```text
///   Absent ──> Present ──> Condemned ──> Absent
///     ^           └──────────────────────> │
///     └────────────────────────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    /// Not of this kind.
    #[default]
    Absent,
    Present,
    /// Nothing more is taken there.
    Condemned,
}

/// A run that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) offset: u64,
    /// A multiple of the kind's unit.
    pub(crate) bytes: usize,
}

/// A block that has nothing left of this kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Emptied {
    pub(crate) block: u32,
    /// The kernel may refer to some of it: it must not be written to before it was given back.
    pub(crate) sent: bool,
}

impl Areas {
    /// None yet, of a slab of `blocks`.
    pub(crate) fn new(kind: Kind, blocks: usize) -> Self {
        let mut areas = Vec::new();
        areas.resize_with(blocks * kind.areas_per_block(), || None);
        Self {
            kind,
            areas,
            blocks: vec![Block::default(); blocks],
            levels: [const { Vec::new() }; LEVELS],
            spare: Vec::new(),
            live: 0,
            spoiled: 0,
            free: 0,
            condemned: 0,
            runs: 0,
        }
    }

    /// Bytes of runs that somebody holds, free ones, and spoiled ones.
    pub(crate) fn bytes(&self) -> [u64; 3] {
        [self.live, self.free, self.spoiled].map(|units| (units * self.kind.unit()) as u64)
    }

    /// Takes a block into this kind: all of it is free.
    pub(crate) fn add(&mut self, block: u32) {
        let added = &mut self.blocks[block as usize];
        assert!(added.state == State::Absent);
        added.state = State::Present;
        for number in self.numbers(block) {
            let area = self.spare.pop().unwrap_or_else(|| Box::new(Area::new()));
            self.areas[number] = Some(area);
            self.free += UNITS;
            self.list(number);
        }
    }

    /// Takes a run of `bytes`, rounded up to units. `None`: no area has so much side by side.
    pub(crate) fn take(&mut self, bytes: usize, generation: u64, tag: u64) -> Option<Taken> {
        let units = bytes.div_ceil(self.kind.unit());
        let number = self.find(units)?;
        Some(self.take_in(number, units, generation, tag))
    }

    /// Takes about the longest run that there is, of `min` to `max` bytes. To be asked when
    /// [`Areas::take`] found none of `max`.
    pub(crate) fn take_longest(
        &mut self,
        min: usize,
        max: usize,
        generation: u64,
        tag: u64,
    ) -> Option<Taken> {
        let level = self.levels.iter().rev().find(|level| !level.is_empty())?;
        let number = *level.last()? as usize;
        let units = self.area(number).longest.min(max.div_ceil(self.kind.unit()));
        let enough = units * self.kind.unit() >= min;
        enough.then(|| self.take_in(number, units, generation, tag))
    }

    fn take_in(&mut self, number: usize, units: usize, generation: u64, tag: u64) -> Taken {
        self.unlist(number);
        let start = self.area_mut(number).take(units, generation, tag);
        self.list(number);
        self.free -= units;
        self.live += units;
        self.blocks[number / self.kind.areas_per_block()].live += units as u32;
        self.runs += 1;
        let offset = number * self.kind.area_bytes() + start * self.kind.unit();
        Taken { offset: offset as u64, bytes: units * self.kind.unit() }
    }

    /// An area with `units` side by side, from the list with the least that has one: what is long
    /// stays long.
    fn find(&self, units: usize) -> Option<usize> {
        let sure = units.next_power_of_two().ilog2() as usize;
        let unsure = units.ilog2() as usize;
        let fits = |number: &&u32| self.area(**number as usize).longest >= units;
        let close = self.levels[unsure].iter().rev().take(LOOKS_MAX).find(fits);
        let found =
            close.or_else(|| self.levels.get(sure..)?.iter().find_map(|level| level.last()));
        found.map(|number| *number as usize)
    }

    /// Takes a run back as a whole, and gives its block if nothing is left there.
    pub(crate) fn give(&mut self, taken: Taken, generation: u64, sent: bool) -> Option<Emptied> {
        self.runs -= 1;
        self.give_units(taken, generation, sent)
    }

    /// Takes the end of a run back, of which nobody was ever given anything.
    pub(crate) fn give_end(&mut self, end: Taken, generation: u64) {
        let emptied = self.give_units(end, generation, false);
        assert!(emptied.is_none(), "the beginning of the run is still held");
    }

    fn give_units(&mut self, taken: Taken, generation: u64, sent: bool) -> Option<Emptied> {
        let (number, start, units) = self.units(taken);
        self.unlist(number);
        let area = self.area_mut(number);
        area.give(start, units, generation, sent);
        let spoiled = sent || area.condemned;
        self.live -= units;
        *(if spoiled { &mut self.spoiled } else { &mut self.free }) += units;
        self.list(number);
        let block = number / self.kind.areas_per_block();
        self.blocks[block].live -= units as u32;
        (self.blocks[block].live == 0).then(|| self.remove(block as u32))
    }

    /// Takes a block out of this kind, of which nobody holds anything.
    fn remove(&mut self, block: u32) -> Emptied {
        let mut sent = false;
        for number in self.numbers(block) {
            self.unlist(number);
            let mut area = self.areas[number].take().expect("the block is of this kind");
            self.free -= area.free();
            self.spoiled -= area.spoiled;
            sent |= area.sent;
            if self.spare.len() < self.kind.areas_per_block() {
                area.clear();
                self.spare.push(area);
            }
        }
        let removed = std::mem::take(&mut self.blocks[block as usize]);
        self.condemned -= usize::from(removed.state == State::Condemned);
        Emptied { block, sent }
    }

    /// See [`Area::renew`].
    pub(crate) fn renew(&mut self, taken: Taken, before: u64, generation: u64) {
        let (number, start, units) = self.units(taken);
        self.area_mut(number).renew(start, units, before, generation);
    }

    /// Whether somebody holds a run of `generation` in which all of `bytes` from `offset` lie.
    pub(crate) fn is_of(&self, offset: u64, bytes: usize, generation: u64) -> bool {
        let (size, unit) = (self.kind.area_bytes() as u64, self.kind.unit());
        let Some(Some(area)) = self.areas.get((offset / size) as usize) else {
            return false;
        };
        let at = (offset % size) as usize;
        let end = (at + bytes.max(1)).div_ceil(unit);
        end <= UNITS && area.is_of(at / unit, end - at / unit, generation)
    }

    /// The block, of those that are not condemned, in which the least is held, and how many bytes
    /// that are.
    pub(crate) fn least_held(&self) -> Option<(u64, u32)> {
        let present = self.blocks.iter().zip(0..).filter(|(of, _)| of.state == State::Present);
        let least = present.map(|(of, block)| (of.live, block)).min()?;
        Some((u64::from(least.0) * self.kind.unit() as u64, least.1))
    }

    /// Lets nothing more be taken in a block, and gives the tags of what is held there.
    pub(crate) fn condemn(&mut self, block: u32) -> Vec<u64> {
        let condemned = &mut self.blocks[block as usize];
        assert!(condemned.state == State::Present);
        condemned.state = State::Condemned;
        self.condemned += 1;
        let mut tags = Vec::new();
        for number in self.numbers(block) {
            self.unlist(number);
            let area = self.area_mut(number);
            let free = area.free();
            area.condemn();
            tags.extend(area.tags());
            self.free -= free;
            self.spoiled += free;
        }
        tags
    }

    /// The number of the area that a run is in, and its place there in units.
    fn units(&self, taken: Taken) -> (usize, usize, usize) {
        let (size, unit) = (self.kind.area_bytes() as u64, self.kind.unit());
        let start = (taken.offset % size) as usize;
        assert!(start.is_multiple_of(unit) && taken.bytes.is_multiple_of(unit));
        ((taken.offset / size) as usize, start / unit, taken.bytes / unit)
    }

    /// The areas of a block.
    fn numbers(&self, block: u32) -> std::ops::Range<usize> {
        let first = block as usize * self.kind.areas_per_block();
        first..first + self.kind.areas_per_block()
    }

    fn area(&self, number: usize) -> &Area {
        self.areas[number].as_ref().expect("the block is of this kind")
    }

    fn area_mut(&mut self, number: usize) -> &mut Area {
        self.areas[number].as_mut().expect("the block is of this kind")
    }

    /// Puts an area into the list that it belongs to, if it has room.
    fn list(&mut self, number: usize) {
        let longest = self.area(number).longest;
        if longest == 0 {
            return;
        }
        let level = &mut self.levels[longest.ilog2() as usize];
        let place = level.len() as u32;
        level.push(number as u32);
        self.area_mut(number).place = place;
    }

    /// Takes an area out of its list. To be called before its longest stretch changes.
    fn unlist(&mut self, number: usize) {
        let (longest, place) = (self.area(number).longest, self.area(number).place);
        if longest == 0 {
            return;
        }
        let level = &mut self.levels[longest.ilog2() as usize];
        let out = level.swap_remove(place as usize);
        assert_eq!(out as usize, number, "an area knows its place");
        if let Some(moved) = level.get(place as usize).copied() {
            self.area_mut(moved as usize).place = place;
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
    fn a_block_leaves_when_nothing_of_it_is_held() {
        let mut areas = Areas::new(Kind::Copied, 3);
        assert_eq!(areas.take(1, 1, 0), None);
        areas.add(1);
        let one = areas.take(1, 1, 0).unwrap();
        assert_eq!(one.bytes, 256);
        let other = areas.take(20_000, 2, 0).unwrap();
        assert_eq!(other.bytes, 20_224);
        assert!(areas.is_of(one.offset, 256, 1) && !areas.is_of(one.offset, 257, 1));
        assert_eq!(areas.give(one, 1, false), None);
        let emptied = areas.give(other, 2, false);
        assert_eq!(emptied, Some(Emptied { block: 1, sent: false }));
        assert_eq!((areas.bytes(), areas.runs), ([0; 3], 0));
        assert!(!areas.is_of(one.offset, 1, 1));
        assert_eq!(areas.take(1, 3, 0), None);
    }

    #[test]
    fn the_longest_run_is_found_where_none_is_long_enough() {
        let mut areas = Areas::new(Kind::Referred, 2);
        areas.add(0);
        let whole = areas.take(BLOCK_BYTES, 1, 0).unwrap();
        areas.add(1);
        let half = areas.take(BLOCK_BYTES / 2 + 1, 2, 0).unwrap();
        assert_eq!(areas.take(BLOCK_BYTES / 2, 3, 0), None);
        assert_eq!(areas.take_longest(BLOCK_BYTES / 2, BLOCK_BYTES, 3, 0), None);
        let rest = areas.take_longest(1, BLOCK_BYTES, 3, 0).unwrap();
        assert_eq!(rest.bytes, BLOCK_BYTES - half.bytes);
        assert_eq!(areas.take_longest(1, BLOCK_BYTES, 4, 0), None);
        assert_eq!(areas.give(whole, 1, true), Some(Emptied { block: 0, sent: true }));
    }

    #[test]
    fn the_block_of_which_least_is_held_is_condemned() {
        for (kind, sent) in [(Kind::Referred, true), (Kind::Referred, false), (Kind::Copied, false)]
        {
            let mut areas = Areas::new(kind, 40);
            assert_eq!(areas.least_held(), None);
            let mut runs = Vec::new();
            for block in [7, 9, 4] {
                areas.add(block);
                for _ in 0..8 * kind.areas_per_block() as u64 {
                    let generation = runs.len() as u64 + 1;
                    let taken = areas.take(64 * kind.unit(), generation, 100 + generation);
                    runs.push((taken.unwrap(), generation));
                }
            }
            let (in_nine, others): (Vec<_>, Vec<_>) =
                runs.into_iter().partition(|(run, _)| run.offset / BLOCK_BYTES as u64 == 9);
            let (kept, given) = in_nine.split_at(2);
            for (run, generation) in given {
                assert_eq!(areas.give(*run, *generation, sent), None);
            }
            let held = 128 * kind.unit() as u64;
            assert_eq!(areas.least_held(), Some((held, 9)));
            let tags = areas.condemn(9);
            assert_eq!(tags, [100 + kept[0].1, 100 + kept[1].1]);
            assert_eq!((areas.condemned, areas.bytes()[1]), (1, 0), "nothing is free there");
            assert_eq!(areas.take(1, 1000, 0), None);
            assert_eq!(areas.least_held(), Some((BLOCK_BYTES as u64, 4)));
            assert_eq!(areas.give(kept[1].0, kept[1].1, false), None);
            let emptied = areas.give(kept[0].0, kept[0].1, false);
            assert_eq!(emptied, Some(Emptied { block: 9, sent }));
            assert_eq!((areas.condemned, areas.bytes()[2]), (0, 0));
            assert_eq!(areas.runs, others.len());
            areas.add(9);
            assert!(areas.take(1, 1000, 0).is_some());
        }
    }

    /// Whatever is taken and given in whatever order: no two runs overlap, nothing spoiled is
    /// taken again, and the sums are right.
    #[test]
    fn runs_never_overlap() {
        for seed in 0..if cfg!(miri) { 0 } else { 16 } {
            println!("seed {seed}");
            let kind = if seed % 2 == 0 { Kind::Copied } else { Kind::Referred };
            play(kind, &mut Pcg64Mcg::seed_from_u64(seed));
        }
    }

    fn play(kind: Kind, random: &mut Pcg64Mcg) {
        const BLOCKS: usize = 4;
        let mut areas = Areas::new(kind, BLOCKS);
        // Generations of units; 0: free, or the block is not there; `u64::MAX`: spoiled.
        let mut model = vec![0_u64; BLOCKS * BLOCK_BYTES / kind.unit()];
        let mut ready: Vec<u32> = (0..BLOCKS as u32).collect();
        let mut runs: Vec<(Taken, u64)> = Vec::new();
        let units = |taken: &Taken| {
            let start = taken.offset as usize / kind.unit();
            start..start + taken.bytes / kind.unit()
        };
        for generation in 1..4000 {
            if random.next_u64() % 5 < 3 {
                let bytes = 1 + random.next_u64() as usize % (kind.bytes_max() / 4);
                let mut taken = areas.take(bytes, generation, 0);
                if taken.is_none() {
                    match ready.pop() {
                        Some(block) => areas.add(block),
                        None => taken = areas.take_longest(1, bytes, generation, 0),
                    }
                }
                let Some(taken) = taken else { continue };
                assert!(model[units(&taken)].iter().all(|of| *of == 0));
                model[units(&taken)].fill(generation);
                runs.push((taken, generation));
            } else if !runs.is_empty() {
                let (taken, of) = runs.swap_remove(random.next_u64() as usize % runs.len());
                let spoiled = kind == Kind::Referred && random.next_u64().is_multiple_of(3);
                model[units(&taken)].fill(if spoiled { u64::MAX } else { 0 });
                if let Some(emptied) = areas.give(taken, of, spoiled) {
                    let whole = emptied.block as usize * BLOCK_BYTES / kind.unit();
                    let whole = &mut model[whole..][..BLOCK_BYTES / kind.unit()];
                    assert_eq!(emptied.sent, whole.contains(&u64::MAX));
                    assert!(whole.iter().all(|of| [0, u64::MAX].contains(of)));
                    whole.fill(0);
                    ready.push(emptied.block);
                }
            }
            if generation % 64 > 0 {
                continue;
            }
            let count = |wanted: &dyn Fn(u64) -> bool| {
                (model.iter().filter(|of| wanted(**of)).count() * kind.unit()) as u64
            };
            let [live, free, spoiled] = areas.bytes();
            assert_eq!(live, count(&|of| of != 0 && of != u64::MAX));
            assert_eq!(spoiled, count(&|of| of == u64::MAX));
            let used = (BLOCKS - ready.len()) * BLOCK_BYTES;
            assert_eq!(live + free + spoiled, used as u64);
            assert_eq!(areas.runs, runs.len());
        }
    }
}
