//! `Sweeper`: lets the programs check all tracked sockets, a batch at a time.
//!
//! To check a socket that is in no CPU cache takes nearly a microsecond. To check 10,000 sockets at
//! once would block other work on that CPU for milliseconds.

use std::time::Instant;

use crate::bpf::BpfIter;
use crate::error::Error;
use crate::limits::{
    RECHECK_DELAY, SWEEP_BATCH_MAX, SWEEP_BATCH_MIN, SWEEP_BATCHES, SWEEP_GROWTH_DIVISOR,
    SWEEP_INTERVAL,
};
use crate::programs::Programs;

/// The byte that the program writes for a socket that has to be checked again.
const SUSPECT: u8 = 1;

/// The schedule and progress of the sweep.
pub(crate) struct Sweeper {
    /// When the next batch is due.
    next_batch_at: Instant,
    /// When the suspects of the last batch are due; always before `next_batch_at`.
    recheck_at: Option<Instant>,
    /// The current pass.
    pass: Option<BpfIter>,
    /// Sockets that the current pass has visited.
    seen: usize,
    /// Sockets that the previous pass visited.
    previous_total: usize,
}

impl Sweeper {
    pub(crate) fn new() -> Self {
        let next_batch_at = Instant::now();
        Self { next_batch_at, recheck_at: None, pass: None, seen: 0, previous_total: 0 }
    }

    /// Returns when [`Sweeper::run_due`] has to be called.
    pub(crate) fn due(&self) -> Instant {
        self.recheck_at.unwrap_or(self.next_batch_at)
    }

    /// Checks the suspects of the last batch again, or else runs the next batch. Sockets that could
    /// not be checked because of an error are checked in the next pass.
    ///
    /// # Errors
    /// The errors of [`Programs::start_sweep`].
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
        let mut results = vec![0; batch_size(self.previous_total, self.seen)];
        let count = pass.read(&mut results)?;
        self.seen += count;
        if results.contains(&SUSPECT) {
            self.recheck_at = Some(Instant::now() + RECHECK_DELAY);
        }
        // A short read is the end of the pass.
        self.pass = (count == results.len()).then_some(pass);
        Ok(())
    }
}

/// Returns the size of the next batch, if the previous pass visited `previous_total` sockets, and
/// the current one `seen` so far.
fn batch_size(previous_total: usize, seen: usize) -> usize {
    let share = if seen > previous_total {
        seen / SWEEP_GROWTH_DIVISOR
    } else {
        previous_total / SWEEP_BATCHES + 1
    };
    share.clamp(SWEEP_BATCH_MIN, SWEEP_BATCH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the batches of a pass over `sockets` sockets.
    fn batches(previous_total: usize, sockets: usize) -> Vec<usize> {
        let (mut seen, mut batches) = (0, Vec::new());
        while seen < sockets {
            batches.push(batch_size(previous_total, seen).min(sockets - seen));
            seen += batches[batches.len() - 1];
        }
        batches
    }

    #[test]
    fn a_batch_is_a_tenth_of_the_previous_pass() {
        assert_eq!(batches(0, SWEEP_BATCH_MIN - 1), [SWEEP_BATCH_MIN - 1]);
        assert_eq!(batches(400, 400), [400]);
        for sockets in [SWEEP_BATCH_MIN * SWEEP_BATCHES, 10_000, 65_536] {
            let steady = batches(sockets, sockets);
            assert_eq!(steady.len(), SWEEP_BATCHES);
            let largest = (sockets / SWEEP_BATCHES + 1).max(SWEEP_BATCH_MIN);
            assert_eq!(steady.iter().max(), Some(&largest));
        }
        assert_eq!([10_000, 65_536].map(|sockets| batches(0, sockets).len()), [12, 20]);
        assert_eq!(batches(1_000_000, 1_000_000).iter().max(), Some(&SWEEP_BATCH_MAX));
        // A few more sockets than before take one more batch.
        assert_eq!(batches(10_000, 10_100).len(), SWEEP_BATCHES + 1);
    }
}
