//! The rule of `--cache-memory auto`: how much memory the cache may have. It reads no clock, and no
//! files.
//!
//! A *level* is the system, or a control group above the daemon that has a limit
//! ([`crate::pressure`]). Between two readings, a level is
//!
//! * *short* if less than 1/16 of it is free, and threads waited for memory more than 1 % of the
//!   time, or more than 1 MB per second of files was read again soon after the kernel had reclaimed
//!   it;
//! * *exhausted* if less than 1/16 of it is free, or reclaimable as the kernel's cache of files.
//!
//! If a level was short in two intervals in a row, or is exhausted, and the cache could free more
//! memory than the kernel's cache of files has, the limit falls: 1/8 of what no client holds is
//! evicted, at least a piece. While no level is short, the limit grows by 1/16 in a second. It is
//! always between [`CACHE_BYTES_MIN`] and half of each level, and no more than half of what is
//! available now beyond what the cache uses.
//!
//! Free memory counts because the pressure of a level includes that of the groups below: if one of
//! these is at its own limit, an eviction does not help it.

use std::time::Duration;

use iolite::service::PIECE_BYTES;

use crate::limits::CACHE_BYTES_MIN;
use crate::pressure::MemoryReading;

/// The limit of the cache, and what it follows from.
#[derive(Debug)]
pub(crate) struct Sizing {
    limit: u64,
    /// The last reading of each level.
    before: Vec<Option<MemoryReading>>,
    /// A level was short of memory between the last two readings.
    was_short: bool,
}

/// The part of its memory that a level keeps free or reclaimable; with more free memory, waits for
/// memory are those of a group below it.
const RESERVE: u64 = 16;
/// The part of a level's memory that the cache has at most.
const CACHE_PART: u64 = 2;
/// The part of the memory that could be evicted that one step evicts.
const EVICTED_PART: u64 = 8;
/// The part of its limit by which the cache may grow in a second.
const GROWTH_PART: u64 = 16;
/// The part of the time that threads wait for memory when it is short.
const STALLED_PART: u32 = 100;
/// The bytes that are read again in a second when memory is short.
const REFAULTED_PER_SECOND: u64 = 1 << 20;

impl Sizing {
    /// Begins with an empty cache.
    pub(crate) fn new(levels: Vec<Option<MemoryReading>>) -> Self {
        let limit = bound(u64::MAX, &levels, 0);
        Self { limit, before: levels, was_short: false }
    }

    /// Returns the bytes that the cache may have.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Decides by new readings of all levels. The cache uses `used` bytes, of which no client holds
    /// `evictable()` bytes.
    pub(crate) fn update(
        &mut self,
        levels: Vec<Option<MemoryReading>>,
        used: u64,
        evictable: impl FnOnce() -> u64,
    ) {
        let pairs = || self.before.iter().zip(&levels);
        // A level may have no reading at times: while it has no limit, for instance.
        let both = || pairs().filter_map(|(before, now)| before.as_ref().zip(now.as_ref()));
        let is_short = both().any(|(before, now)| now.is_short_since(before));
        let is_lasting = is_short && self.was_short;
        let has_pressure = |(before, now): &(&MemoryReading, &MemoryReading)| {
            now.is_exhausted() || (is_lasting && now.is_short_since(before))
        };
        // The bytes that the kernel could reclaim instead.
        let file_cache = both().filter(has_pressure).map(|(_, now)| now.file_cache).min();
        if let Some(file_cache) = file_cache {
            let evictable = evictable();
            if evictable > file_cache {
                let step = (evictable / EVICTED_PART).max(PIECE_BYTES);
                self.limit = self.limit.min(used.saturating_sub(step));
            }
        } else if !is_short {
            let elapsed = both().map(|(before, now)| now.at.saturating_sub(before.at)).min();
            let milliseconds = elapsed.unwrap_or_default().as_millis().min(1000) as u64;
            self.limit += self.limit / GROWTH_PART * milliseconds / 1000;
        }
        self.limit = bound(self.limit, &levels, used);
        self.was_short = is_short;
        self.before = levels;
    }
}

/// Keeps a limit within the memory of all levels. Until the next reading, the cache takes at most
/// half of the memory that is available.
fn bound(limit: u64, levels: &[Option<MemoryReading>], used: u64) -> u64 {
    let of_level = |now: &MemoryReading| (now.limit / CACHE_PART).min(used + now.available() / 2);
    let most = levels.iter().flatten().map(of_level).min().unwrap_or(0);
    limit.min(most).max(CACHE_BYTES_MIN)
}

impl MemoryReading {
    /// Returns the bytes that are free, or that the kernel can free.
    fn available(&self) -> u64 {
        self.free + self.file_cache
    }

    /// Returns whether the kernel can hardly free any more memory.
    fn is_exhausted(&self) -> bool {
        self.available() < self.limit / RESERVE
    }

    /// Returns whether threads waited for memory, or files were read again, since a reading.
    fn is_short_since(&self, before: &Self) -> bool {
        let elapsed = self.at.saturating_sub(before.at);
        let refaulted = self.refaulted.saturating_sub(before.refaulted);
        let refaulted_min = REFAULTED_PER_SECOND * elapsed.as_millis() as u64 / 1000;
        let is_waiting = self.stalled.saturating_sub(before.stalled) > elapsed / STALLED_PART;
        self.free < self.limit / RESERVE && (is_waiting || refaulted > refaulted_min)
    }
}

/// The time between two readings.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;
    const CALM: MemoryReading = MemoryReading {
        at: Duration::ZERO,
        limit: 1024 * MB,
        free: 512 * MB,
        file_cache: 256 * MB,
        stalled: Duration::ZERO,
        refaulted: 0,
    };

    /// A machine with one level, whose cache always uses its limit.
    struct Machine {
        sizing: Sizing,
        now: MemoryReading,
    }

    impl Machine {
        fn new(now: MemoryReading) -> Self {
            Self { sizing: Sizing::new(vec![Some(now)]), now }
        }

        /// Returns the limit after a quarter of a second, in MB.
        fn step(&mut self, used: u64, evictable: u64) -> u64 {
            self.now.at += SAMPLE_INTERVAL;
            self.sizing.update(vec![Some(self.now)], used * MB, || evictable * MB);
            self.sizing.limit() / MB
        }
    }

    #[test]
    fn the_cache_has_half_of_the_memory_and_takes_half_of_what_is_available() {
        let mut machine = Machine::new(CALM);
        assert_eq!(machine.sizing.limit(), 384 * MB, "half of what is free or reclaimable");
        for _ in 0..200 {
            machine.step(384, 384);
        }
        assert_eq!(machine.step(384, 384), 512, "half of all");
        // Another program takes memory: the limit leaves half of the rest.
        (machine.now.free, machine.now.file_cache) = (100 * MB, 60 * MB);
        assert_eq!(machine.step(100, 100), 180);
        // The smallest level counts.
        let group = MemoryReading { limit: 100 * MB, free: 90 * MB, file_cache: 0, ..CALM };
        assert_eq!(Sizing::new(vec![Some(CALM), Some(group)]).limit(), 45 * MB);
        assert_eq!(Sizing::new(vec![Some(CALM), None]).limit(), 384 * MB);
        // No reading.
        assert_eq!(Sizing::new(vec![None]).limit(), CACHE_BYTES_MIN);
    }

    #[test]
    fn waits_for_memory_that_last_shrink_the_larger_cache() {
        let waiting = |machine: &mut Machine| machine.now.stalled += Duration::from_millis(3);
        let few_free = MemoryReading { free: 50 * MB, file_cache: 100 * MB, ..CALM };
        let mut machine = Machine::new(few_free);
        machine.sizing.limit = 400 * MB;
        waiting(&mut machine);
        assert_eq!(machine.step(400, 400), 400, "one interval is not lasting");
        waiting(&mut machine);
        assert_eq!(machine.step(400, 400), 350, "an eighth of what could be evicted");
        waiting(&mut machine);
        assert_eq!(machine.step(350, 104), 337, "of 104");
        waiting(&mut machine);
        assert_eq!(machine.step(337, 100), 337, "the kernel's cache is as large");
        waiting(&mut machine);
        assert_eq!(machine.step(337, 101), 324);
        assert!(machine.step(324, 101) > 324, "the pressure is over");
        // Little waiting is none.
        let limit = machine.sizing.limit() / MB;
        for _ in 0..5 {
            machine.now.stalled += Duration::from_millis(2);
            assert!(machine.step(limit, limit) >= limit);
        }
    }

    #[test]
    fn files_that_are_read_again_shrink_the_larger_cache() {
        let mut machine = Machine::new(MemoryReading { free: 50 * MB, ..CALM });
        machine.sizing.limit = 400 * MB;
        // The kernel's cache has 256 MB.
        for limit in [400, 350, 306, 267, 233, 233] {
            machine.now.refaulted += MB;
            let used = machine.sizing.limit() / MB;
            assert_eq!(machine.step(used, used), limit);
        }
    }

    #[test]
    fn waits_elsewhere_change_nothing() {
        // Enough memory is free: the waits are those of a group with a limit of its own.
        let mut machine = Machine::new(CALM);
        for _ in 0..10 {
            machine.now.stalled += Duration::from_millis(100);
            machine.now.refaulted += 100 * MB;
            assert!(machine.step(384, 384) >= 384);
        }
        // A program reads many files once each: little is free, but no thread waits for memory, and
        // nothing is read again.
        let mut machine = Machine::new(MemoryReading { free: 20 * MB, ..CALM });
        let limit = machine.sizing.limit() / MB;
        assert!((0..10).all(|_| machine.step(limit, limit) >= limit));
    }

    #[test]
    fn a_level_without_a_reading_is_compared_with_no_other() {
        // The counters of the system are far ahead of those of the group. The group has a limit
        // only at every second reading.
        let group = MemoryReading { free: 20 * MB, file_cache: 100 * MB, ..CALM };
        let system = MemoryReading { stalled: Duration::from_secs(9), refaulted: 900 * MB, ..CALM };
        let later = |reading: MemoryReading, at| Some(MemoryReading { at, ..reading });
        let mut sizing = Sizing::new(vec![later(group, Duration::ZERO), None]);
        sizing.limit = 400 * MB;
        let mut limits = Vec::new();
        for step in 1..=4 {
            let at = SAMPLE_INTERVAL * step;
            let readings = match step % 2 {
                0 => vec![later(group, at), None],
                _ => vec![None, later(MemoryReading { free: 20 * MB, ..system }, at)],
            };
            sizing.update(readings, 400 * MB, || 400 * MB);
            limits.push(sizing.limit() / MB);
        }
        assert_eq!(limits, [400; 4], "no level has two readings in a row");
    }

    #[test]
    fn a_machine_without_reclaimable_memory_shrinks_the_cache_at_once() {
        let mut machine = Machine::new(CALM);
        machine.sizing.limit = 400 * MB;
        (machine.now.free, machine.now.file_cache) = (30 * MB, 20 * MB);
        assert_eq!(machine.step(400, 400), 350);
        // Clients hold the rest.
        assert_eq!(machine.step(350, 19), 350);
        for _ in 0..100 {
            let used = machine.sizing.limit() / MB;
            machine.step(used, used);
        }
        let least = machine.sizing.limit() / MB;
        assert!((16..25).contains(&least), "{least}: no more than the kernel's files");
        machine.now.file_cache = 0;
        (0..100).for_each(|_| _ = machine.step(machine.sizing.limit() / MB, 17));
        assert_eq!(machine.sizing.limit(), CACHE_BYTES_MIN, "never less");
    }

    #[test]
    fn the_cache_grows_again_slowly() {
        let mut machine = Machine::new(CALM);
        machine.sizing.limit = 64 * MB;
        (0..4).for_each(|_| _ = machine.step(64, 64));
        let limit = machine.sizing.limit();
        assert!((67 * MB..69 * MB).contains(&limit), "{limit}: a sixteenth in a second");
        // A long time without readings counts as a second.
        machine.now.at += Duration::from_secs(3600);
        machine.step(64, 64);
        assert!(machine.sizing.limit() < 73 * MB);
    }
}
