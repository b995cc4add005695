//! The messages of a process. The exit report is one of them.

use std::fmt::{Display, Write};

use uselect::{Backend, Error};

use crate::config;
use crate::libc_next::preserve_errno;
use crate::output::MessageLine;

/// Reports that the named backend is not available to this process with its current user.
pub(crate) fn report_missing_backend((backend, error): &(Backend, Error)) {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    let error = error.at_path(config::get().socket());
    write_message(&format_args!(
        "no backend {} for user {user}: {error}; waits are system calls",
        backend_name(*backend)
    ));
}

/// Reports that the daemon has ended.
pub(crate) fn report_daemon_end() {
    write_message(&"uselectd has ended; waits are system calls from now on");
}

/// Writes a message with the process ID and the name of the program.
pub(crate) fn write_message(text: &dyn Display) {
    let mut line = MessageLine::new();
    // SAFETY: getpid(2) takes no arguments and cannot fail.
    let id = unsafe { libc::getpid() };
    let config = config::get();
    // A longer message is cut.
    let _ = write!(line, "uselect: process {id} ({}): {text}", config.program);
    line.finish();
    preserve_errno(|| config.output.write(&line));
}

/// Returns the name of a backend on the command line.
pub(crate) fn backend_name(backend: Backend) -> &'static str {
    match backend {
        Backend::Bpf(_) => "bpf",
        Backend::Multishot => "multishot",
        Backend::Calls => "calls",
    }
}
