//! Aggregates compared with plain vectors: the same operations give the same bytes, and no holder
//! sees the changes of another.

use iolite::limits::SLAB_BYTES_MIN;
use iolite::{Aggregate, AllocError, MemoryKind, Slab, Slice, Sum};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

struct Play {
    slab: Slab,
    random: Pcg64Mcg,
    /// Aggregates and their expected bytes.
    pairs: Vec<(Aggregate, Vec<u8>)>,
}

impl Play {
    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u64() as usize % bound
    }

    /// Returns up to 300 random bytes, sometimes none.
    fn bytes(&mut self) -> Vec<u8> {
        let length = self.below(300);
        (0..length).map(|_| self.random.next_u64() as u8).collect()
    }

    fn slice(&mut self) -> (Slice, Vec<u8>) {
        let (bytes, kind) = (self.bytes(), self.kind());
        let room = bytes.len().max(1);
        let mut buffer = loop {
            match self.slab.allocate(kind, room..=room, 0) {
                Ok(buffer) => break buffer,
                Err(AllocError::NotReady) => drop(self.slab.prefault()),
                Err(_) => {
                    let dropped = self.below(self.pairs.len());
                    drop(self.pairs.swap_remove(dropped));
                }
            }
        };
        assert_eq!(buffer.write(&bytes), bytes.len());
        (buffer.freeze(), bytes)
    }

    fn kind(&mut self) -> MemoryKind {
        if self.below(4) == 0 { MemoryKind::ZeroCopy } else { MemoryKind::Copied }
    }

    /// Returns a range within `length`.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let (one, other) = (self.below(length + 1), self.below(length + 1));
        one.min(other)..one.max(other)
    }

    fn step(&mut self) {
        let (slice, bytes) = self.slice();
        if self.pairs.is_empty() {
            self.pairs.push((slice.into(), bytes));
            return;
        }
        let (at, other) = (self.below(self.pairs.len()), self.below(self.pairs.len()));
        let (mut aggregate, mut model) = self.pairs[at].clone();
        let range = self.range(model.len());
        let wide = range.start as u64..range.end as u64;
        match self.below(12) {
            0 => (aggregate, model) = (slice.into(), bytes),
            1 => {
                aggregate.append(slice);
                model.extend(bytes);
            }
            2 => {
                aggregate.prepend(slice);
                model.splice(0..0, bytes);
            }
            3 if model.len() < 5000 => {
                aggregate.concatenate(self.pairs[other].0.clone());
                model.extend(self.pairs[other].1.clone());
            }
            4 => {
                let rest = aggregate.split_off(wide.start);
                self.pairs.push((rest, model.split_off(range.start)));
            }
            5 => {
                aggregate.truncate(wide.end + 1);
                model.truncate(range.end + 1);
            }
            6 => {
                aggregate.skip(wide.start);
                model.drain(..range.start);
            }
            7 => (aggregate, model) = (aggregate.slice(wide), model[range].to_vec()),
            8 => {
                aggregate.replace(wide, slice.into());
                model.splice(range, bytes);
            }
            9 | 10 => {
                // In place, if there is no other holder.
                drop((self.pairs.swap_remove(at), slice));
                let bytes: Vec<u8> = bytes.into_iter().cycle().take(range.len()).collect();
                let kind = self.kind();
                let range = range.start..range.start + bytes.len();
                if aggregate.write(wide.start, &bytes, &self.slab, kind, 0).is_ok() {
                    model[range].copy_from_slice(&bytes);
                }
            }
            _ => {
                let kind = self.kind();
                aggregate = aggregate.copy(&self.slab, kind, 0).unwrap_or(aggregate);
            }
        }
        self.pairs.push((aggregate, model));
        if self.pairs.len() > 40 {
            let dropped = self.below(self.pairs.len());
            drop(self.pairs.swap_remove(dropped));
        }
    }

    fn check(&self) {
        for (aggregate, model) in &self.pairs {
            assert_eq!(aggregate.len(), model.len() as u64);
            assert!(aggregate.to_vec() == *model);
            assert!(aggregate.slices().all(|slice| !slice.is_empty()));
            assert_eq!(aggregate.sum(), Sum::of(model));
            assert_eq!(aggregate.crc32c(), crc32c::crc32c(model));
            for position in (0..model.len()).step_by(97) {
                let (found, within) =
                    aggregate.at(position as u64).expect("the position is before the end");
                assert!(model[position..].starts_with(&found[within..]));
                assert!(model[..position].ends_with(&found[..within]));
            }
            assert!(aggregate.at(model.len() as u64).is_none());
        }
    }
}

#[test]
fn aggregates_behave_like_vectors() {
    // `make soak` plays more games.
    let chosen = std::env::var("GAMES").map(|games| games.parse().expect("a number"));
    for seed in 0..chosen.unwrap_or(if cfg!(miri) { 1 } else { 30 }) {
        println!("seed {seed}");
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let random = Pcg64Mcg::seed_from_u64(seed);
        let mut play = Play { slab, random, pairs: Vec::new() };
        for step in 0..if cfg!(miri) { 60 } else { 2000 } {
            play.step();
            if step % 20 == 0 {
                play.check();
            }
        }
        play.check();
        let slab = play.slab.clone();
        drop(play);
        let stats = slab.stats();
        assert_eq!((stats.live, stats.tainted, stats.extents), (0, 0, 0));
    }
}
