//! `Sweep`: has the programs look at all tracked sockets, a part at a time.
//!
//! A socket that is not in the processor's caches takes most of a microsecond, so 10,000 of them at
//! once would keep others from it for milliseconds.

use std::time::Instant;

use crate::error::Error;
use crate::kernel::Iteration;
use crate::limits::{
    SWEEP_AGAIN, SWEEP_PART, SWEEP_PART_MAX, SWEEP_PARTS, SWEEP_PARTS_NEW, SWEEP_TIME,
};
use crate::programs::Programs;

/// What the programs write for a socket that is to be looked at again.
const DOUBTED: u8 = 1;

pub(crate) struct Sweep {
    /// When the next part is to be looked at.
    next: Instant,
    /// When what was doubted is to be looked at again, before that.
    again: Option<Instant>,
    /// The pass that goes on.
    pass: Option<Iteration>,
    /// Sockets that it has looked at.
    seen: usize,
    /// Those of the pass before.
    all: usize,
}

impl Sweep {
    pub(crate) fn new() -> Self {
        Self { next: Instant::now(), again: None, pass: None, seen: 0, all: 0 }
    }

    pub(crate) fn due(&self) -> Instant {
        self.again.unwrap_or(self.next)
    }

    /// Does what is due. What could not be looked at is with the next pass.
    ///
    /// # Errors
    /// Those of [`Programs::sweep`].
    pub(crate) fn go_on(&mut self, programs: &Programs) -> Result<(), Error> {
        if self.again.take().is_some() {
            return programs.look_again();
        }
        self.next = Instant::now() + SWEEP_TIME;
        let pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                self.all = std::mem::take(&mut self.seen);
                programs.sweep()?
            }
        };
        let mut found = vec![0; part(self.all, self.seen)];
        let count = pass.read(&mut found)?;
        self.seen += count;
        if found.contains(&DOUBTED) {
            self.again = Some(Instant::now() + SWEEP_AGAIN);
        }
        // Less than was asked for is the end.
        self.pass = (count == found.len()).then_some(pass);
        Ok(())
    }
}

/// How many sockets to look at next, where the pass before has looked at `all`, and this one at
/// `seen` so far.
fn part(all: usize, seen: usize) -> usize {
    let share = if seen > all { seen / SWEEP_PARTS_NEW } else { all / SWEEP_PARTS + 1 };
    share.clamp(SWEEP_PART, SWEEP_PART_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a pass over so many sockets.
    fn parts(before: usize, sockets: usize) -> Vec<usize> {
        let (mut seen, mut parts) = (0, Vec::new());
        while seen < sockets {
            parts.push(part(before, seen).min(sockets - seen));
            seen += parts[parts.len() - 1];
        }
        parts
    }

    #[test]
    fn a_part_is_no_more_than_a_tenth_but_of_new_ones() {
        assert_eq!(parts(0, SWEEP_PART - 1), [SWEEP_PART - 1]);
        assert_eq!(parts(400, 400), [400]);
        for sockets in [SWEEP_PART * SWEEP_PARTS, 10_000, 65_536] {
            let steady = parts(sockets, sockets);
            assert_eq!(steady.len(), SWEEP_PARTS);
            assert_eq!(steady.iter().max(), Some(&(sockets / SWEEP_PARTS + 1).max(SWEEP_PART)));
        }
        assert_eq!([10_000, 65_536].map(|sockets| parts(0, sockets).len()), [12, 20]);
        assert_eq!(parts(1_000_000, 1_000_000).iter().max(), Some(&SWEEP_PART_MAX));
        // A few more than before are one part more.
        assert_eq!(parts(10_000, 10_100).len(), SWEEP_PARTS + 1);
    }
}
