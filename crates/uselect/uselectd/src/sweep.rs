//! `Sweep`: has the programs look at all tracked sockets, a part at a time.
//!
//! A socket that is not in the processor's caches takes most of a microsecond, so 10,000 of them at
//! once would keep others from it for milliseconds.

use std::time::Instant;

use crate::bpf::BpfIter;
use crate::error::Error;
use crate::limits::{
    RECHECK_DELAY, SWEEP_BATCH_MAX, SWEEP_BATCH_MIN, SWEEP_BATCHES, SWEEP_GROWTH_DIVISOR,
    SWEEP_INTERVAL,
};
use crate::programs::Programs;

/// What the programs write for a socket that is to be looked at again.
const SUSPECT: u8 = 1;

pub(crate) struct Sweeper {
    /// When the next part is to be looked at.
    next_batch_at: Instant,
    /// When what was doubted is to be looked at again, before that.
    recheck_at: Option<Instant>,
    /// The pass that goes on.
    pass: Option<BpfIter>,
    /// Sockets that it has looked at.
    seen: usize,
    /// Those of the pass before.
    previous_total: usize,
}

impl Sweeper {
    pub(crate) fn new() -> Self {
        Self {
            next_batch_at: Instant::now(),
            recheck_at: None,
            pass: None,
            seen: 0,
            previous_total: 0,
        }
    }

    pub(crate) fn due(&self) -> Instant {
        self.recheck_at.unwrap_or(self.next_batch_at)
    }

    /// Does what is due. What could not be looked at is with the next pass.
    ///
    /// # Errors
    /// Those of [`Programs::sweep`].
    pub(crate) fn run_due(&mut self, programs: &Programs) -> Result<(), Error> {
        if self.recheck_at.take().is_some() {
            return programs.recheck();
        }
        self.next_batch_at = Instant::now() + SWEEP_INTERVAL;
        let pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                self.previous_total = std::mem::take(&mut self.seen);
                programs.start_sweep()?
            }
        };
        let mut found = vec![0; batch_size(self.previous_total, self.seen)];
        let count = pass.read(&mut found)?;
        self.seen += count;
        if found.contains(&SUSPECT) {
            self.recheck_at = Some(Instant::now() + RECHECK_DELAY);
        }
        // Less than was asked for is the end.
        self.pass = (count == found.len()).then_some(pass);
        Ok(())
    }
}

/// How many sockets to look at next, where the pass before has looked at `all`, and this one at
/// `seen` so far.
fn batch_size(all: usize, seen: usize) -> usize {
    let share = if seen > all { seen / SWEEP_GROWTH_DIVISOR } else { all / SWEEP_BATCHES + 1 };
    share.clamp(SWEEP_BATCH_MIN, SWEEP_BATCH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a pass over so many sockets.
    fn parts(before: usize, sockets: usize) -> Vec<usize> {
        let (mut seen, mut parts) = (0, Vec::new());
        while seen < sockets {
            parts.push(batch_size(before, seen).min(sockets - seen));
            seen += parts[parts.len() - 1];
        }
        parts
    }

    #[test]
    fn a_part_is_no_more_than_a_tenth_but_of_new_ones() {
        assert_eq!(parts(0, SWEEP_BATCH_MIN - 1), [SWEEP_BATCH_MIN - 1]);
        assert_eq!(parts(400, 400), [400]);
        for sockets in [SWEEP_BATCH_MIN * SWEEP_BATCHES, 10_000, 65_536] {
            let steady = parts(sockets, sockets);
            assert_eq!(steady.len(), SWEEP_BATCHES);
            assert_eq!(
                steady.iter().max(),
                Some(&(sockets / SWEEP_BATCHES + 1).max(SWEEP_BATCH_MIN))
            );
        }
        assert_eq!([10_000, 65_536].map(|sockets| parts(0, sockets).len()), [12, 20]);
        assert_eq!(parts(1_000_000, 1_000_000).iter().max(), Some(&SWEEP_BATCH_MAX));
        // A few more than before are one part more.
        assert_eq!(parts(10_000, 10_100).len(), SWEEP_BATCHES + 1);
    }
}
