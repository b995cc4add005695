//! The line that a process ends with (`uselect run --stats`).

use std::ffi::c_int;
use std::fmt::Write;
use std::mem::MaybeUninit;

use uselect::{Backend, Stats};

use crate::config;
use crate::process::{self, Process};

/// The standard error that the process began with. Programs let its number stand for other files
/// later, where the line has no place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Output {
    device: u64,
    inode: u64,
}

impl Output {
    pub(crate) fn stderr() -> Option<Self> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: there is room for what it writes.
        let code: c_int = unsafe { libc::fstat(libc::STDERR_FILENO, status.as_mut_ptr()) };
        if code != 0 {
            return None;
        }
        // SAFETY: fstat(2) has written all of it.
        let status = unsafe { status.assume_init() };
        Some(Self { device: status.st_dev, inode: status.st_ino })
    }
}

/// Writes the line, with one call and without the program's streams. A process that has waited for
/// nothing says nothing.
pub(crate) fn report() {
    let Some(output) = config::get().output else { return };
    if process::waits() == 0 || Output::stderr() != Some(output) {
        return;
    }
    let mut line = Line { bytes: [0; LINE_MAX], end: 0 };
    // A line that is too long is cut.
    let _ = write_line(&mut line);
    let bytes = &line.bytes[..line.end];
    // SAFETY: the bytes are there.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

fn write_line(line: &mut Line) -> std::fmt::Result {
    let made = process::made();
    let stats = made.map(|process| process.tracker.stats()).unwrap_or_default();
    // SAFETY: it takes nothing and cannot fail.
    let (id, waits) = (unsafe { libc::getpid() }, process::waits());
    write!(line, "uselect: process {id}: {}", Waits { waits, stats })?;
    match made {
        None => line.write_str("; no TCP socket\n"),
        Some(process) => writeln!(line, "; {}", Why(process)),
    }
}

struct Waits {
    waits: u64,
    stats: Stats,
}

impl std::fmt::Display for Waits {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waits, without) = (self.waits, self.stats.without_call);
        let per_mille = without * 1000 / waits.max(1);
        let (percent, tenth) = (per_mille / 10, per_mille % 10);
        write!(out, "{waits} waits, {without} ({percent}.{tenth} %) without a system call, ")?;
        write!(out, "{} sleeps", self.stats.sleeps)
    }
}

/// The backend, and why it is no better one.
struct Why<'a>(&'a Process);

impl std::fmt::Display for Why<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "backend {}", name(self.0.tracker.backend()))?;
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

/// As the command line has it.
fn name(backend: Backend) -> &'static str {
    match backend {
        Backend::Bpf(_) => "bpf",
        Backend::Multishot => "multishot",
        Backend::Calls => "calls",
    }
}

/// Bytes of a line at most.
const LINE_MAX: usize = 400;

struct Line {
    bytes: [u8; LINE_MAX],
    end: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.end..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.end += count;
        if count < text.len() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_a_tenth_and_a_long_line_is_cut() {
        let stats = Stats { waits: 12, without_call: 4151, sleeps: 7 };
        let text = Waits { waits: 15145, stats }.to_string();
        assert_eq!(text, "15145 waits, 4151 (27.4 %) without a system call, 7 sleeps");
        let mut line = Line { bytes: [0; LINE_MAX], end: 0 };
        assert!((0..LINE_MAX).try_for_each(|_| line.write_str("ab")).is_err());
        assert_eq!(line.end, LINE_MAX);
    }
}
