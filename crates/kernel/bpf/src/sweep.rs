//! `Sweep`: has the programs look at all tracked sockets, a part at a time.
//!
//! A socket that is not in the processor's caches takes most of a microsecond, so 10,000 of them at
//! once would keep others from it for milliseconds.

use std::time::Instant;

use crate::error::Error;
use crate::kernel::Iteration;
use crate::limits::{SWEEP_AGAIN, SWEEP_PART, SWEEP_PARTS, SWEEP_PARTS_NEW, SWEEP_TIME};
use crate::programs::Programs;

pub(crate) struct Sweep {
    /// When the next part is to be looked at.
    next: Instant,
    /// When what the last part has found is to be looked at again, before that.
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

    /// Does what is due. What cannot be looked at now is with the next pass.
    ///
    /// # Errors
    /// Those of [`Programs::sweep`].
    pub(crate) fn go_on(&mut self, programs: &Programs) -> Result<(), Error> {
        if self.again.take().is_some() {
            return programs.look_again();
        }
        let now = Instant::now();
        self.next = now + SWEEP_TIME;
        let pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                self.all = std::mem::take(&mut self.seen);
                programs.sweep()?
            }
        };
        let part = SWEEP_PART.max(self.all / SWEEP_PARTS).max(self.seen / SWEEP_PARTS_NEW);
        let mut found = vec![0; part];
        let count = pass.read(&mut found)?;
        self.seen += count;
        self.again = found.contains(&1).then(|| now + SWEEP_AGAIN);
        // Less than was asked for is the end.
        self.pass = (count == part).then_some(pass);
        Ok(())
    }
}
