//! The line that a process ends with (`uselect run --stats`).

use std::fmt::{self, Display, Formatter};

use uselect::Stats;

use crate::config;
use crate::process::{self, Process};
use crate::say::{name, say};

/// Writes the line that the process ends with. One that has waited for nothing says nothing.
pub(crate) fn report() {
    if config::get().says_stats && process::waits() > 0 {
        say(&Ending);
    }
}

struct Ending;

impl Display for Ending {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let made = process::made();
        let mut stats = made.map(|process| process.tracker.stats()).unwrap_or_default();
        stats.sleeps += process::calls();
        write!(out, "{}", Waits { waits: process::waits(), stats })?;
        match made {
            None => out.write_str("; no TCP socket"),
            Some(process) => write!(out, "; {}", Why(process)),
        }
    }
}

struct Waits {
    waits: u64,
    stats: Stats,
}

impl Display for Waits {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let (waits, without) = (self.waits, self.stats.without_call);
        let per_mille = without * 1000 / waits.max(1);
        let (percent, tenth) = (per_mille / 10, per_mille % 10);
        write!(out, "{waits} waits, {without} ({percent}.{tenth} %) without a system call, ")?;
        write!(out, "{} sleeps", self.stats.sleeps)
    }
}

/// The backend, and why it is no better one.
struct Why<'a>(&'a Process);

impl Display for Why<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "backend {}", name(self.0.tracker.backend()))?;
        if self.0.is_lost() {
            return out.write_str(" (uselectd has ended)");
        }
        let mut missing = self.0.why.iter();
        let Some((backend, why)) = missing.next() else { return Ok(()) };
        let socket = config::get().socket();
        write!(out, " (no {}: {}", name(*backend), why.at(socket))?;
        missing.try_for_each(|(backend, why)| {
            write!(out, "; no {}: {}", name(*backend), why.at(socket))
        })?;
        out.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_a_tenth() {
        let stats = Stats { waits: 12, without_call: 4151, sleeps: 7 };
        let text = Waits { waits: 15145, stats }.to_string();
        assert_eq!(text, "15145 waits, 4151 (27.4 %) without a system call, 7 sleeps");
    }
}
