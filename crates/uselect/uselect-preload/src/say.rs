//! What a process says while it runs: what it cannot have.

use std::fmt::{Display, Write};

use uselect::{Backend, Error};

use crate::config;
use crate::output::Line;
use crate::real::aside;

/// The backend that was named cannot be had by this process, as its user is now.
pub(crate) fn tell_missing((backend, why): &(Backend, Error)) {
    // SAFETY: it takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    let why = why.at_path(config::get().socket());
    say(&format_args!(
        "no backend {} for user {user}: {why}; its waits are system calls",
        name(*backend)
    ));
}

/// The daemon has ended under this process.
pub(crate) fn tell_loss() {
    say(&"uselectd has ended; waits are system calls from now on");
}

/// Writes a line of the process.
pub(crate) fn say(what: &dyn Display) {
    let mut line = Line::new();
    // SAFETY: it takes nothing and cannot fail.
    let id = unsafe { libc::getpid() };
    let config = config::get();
    // One that is too long is cut.
    let _ = write!(line, "uselect: process {id} ({}): {what}", config.program);
    line.finish();
    aside(|| config.output.write(&line));
}

/// As the command line has it.
pub(crate) fn name(backend: Backend) -> &'static str {
    match backend {
        Backend::Bpf(_) => "bpf",
        Backend::Multishot => "multishot",
        Backend::Calls => "calls",
    }
}
