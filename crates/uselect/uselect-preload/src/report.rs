//! The line that a process ends with (`uselect run --stats`).

use std::fmt::{self, Display, Formatter, Write};

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
        write_waits(out, process::waits(), &stats)?;
        match made {
            None => out.write_str("; no TCP socket"),
            Some(process) => write_backend(out, process),
        }
    }
}

fn write_waits(out: &mut impl Write, waits: u64, stats: &Stats) -> fmt::Result {
    let Stats { without_syscall: without, sleeps, .. } = stats;
    let per_mille = without * 1000 / waits.max(1);
    let (percent, tenth) = (per_mille / 10, per_mille % 10);
    write!(out, "{waits} waits, {without} ({percent}.{tenth} %) without a system call, ")?;
    write!(out, "{sleeps} sleeps")
}

/// The backend, and why it is no better one.
fn write_backend(out: &mut Formatter<'_>, process: &Process) -> fmt::Result {
    write!(out, "; backend {}", name(process.tracker.backend()))?;
    if process.is_lost() {
        return out.write_str(" (uselectd has ended)");
    }
    let mut missing = process.why.iter();
    let Some((backend, why)) = missing.next() else { return Ok(()) };
    let socket = config::get().socket();
    write!(out, " (no {}: {}", name(*backend), why.at_path(socket))?;
    missing.try_for_each(|(backend, why)| {
        write!(out, "; no {}: {}", name(*backend), why.at_path(socket))
    })?;
    out.write_str(")")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_a_tenth() {
        let stats = Stats { waits: 12, without_syscall: 4151, sleeps: 7 };
        let mut text = String::new();
        write_waits(&mut text, 15145, &stats).unwrap();
        assert_eq!(text, "15145 waits, 4151 (27.4 %) without a system call, 7 sleeps");
    }
}
