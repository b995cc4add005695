//! The exit report of a process (`uselect run --stats`).

use std::fmt::{self, Display, Formatter, Write};

use uselect::Stats;

use crate::config;
use crate::message::{backend_name, write_message};
use crate::process::{self, RegisteredProcess};

/// Writes the exit report. A process that never waited writes none.
pub(crate) fn write_report() {
    if config::get().reports_stats && process::waits() > 0 {
        write_message(&ExitReport);
    }
}

struct ExitReport;

impl Display for ExitReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let registered = process::registered();
        let mut stats = registered.map(|process| process.tracker.stats()).unwrap_or_default();
        stats.sleeps += process::blocking_calls();
        write_waits(out, process::waits(), &stats)?;
        match registered {
            None => out.write_str("; no TCP socket"),
            Some(process) => write_backend(out, process),
        }
    }
}

fn write_waits(out: &mut impl Write, waits: u64, stats: &Stats) -> fmt::Result {
    let Stats { without_syscall, sleeps, .. } = stats;
    let per_mille = without_syscall * 1000 / waits.max(1);
    let (percent, tenth) = (per_mille / 10, per_mille % 10);
    write!(out, "{waits} waits, {without_syscall} ({percent}.{tenth} %) without a system call, ")?;
    write!(out, "{sleeps} sleeps")
}

/// Writes the backend, and why no better one is available.
fn write_backend(out: &mut Formatter<'_>, process: &RegisteredProcess) -> fmt::Result {
    write!(out, "; backend {}", backend_name(process.tracker.backend()))?;
    if process.has_lost_daemon() {
        return out.write_str(" (uselectd has ended)");
    }
    let mut missing = process.missing.iter();
    let Some((backend, error)) = missing.next() else { return Ok(()) };
    let socket = config::get().socket();
    write!(out, " (no {}: {}", backend_name(*backend), error.at_path(socket))?;
    missing.try_for_each(|(backend, error)| {
        write!(out, "; no {}: {}", backend_name(*backend), error.at_path(socket))
    })?;
    out.write_str(")")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_in_tenths_of_a_percent() {
        let stats = Stats { waits: 12, without_syscall: 4151, sleeps: 7 };
        let mut text = String::new();
        write_waits(&mut text, 15145, &stats).unwrap();
        assert_eq!(text, "15145 waits, 4151 (27.4 %) without a system call, 7 sleeps");
    }
}
