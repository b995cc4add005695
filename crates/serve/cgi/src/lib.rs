//! The launcher of CGI programs (RFC 3875): a process that millrace starts before it gives up its
//! rights. It serves FastCGI on a Unix socket, and starts a program for each request.
//!
//! ```text
//!  millrace ── Unix socket, FastCGI ──> launcher ── environment, standard streams ──> program
//!           ── control socket ────────>          ── SIGKILL to its group ───────────>
//! ```
//!
//! The launcher accepts connections of its parent only. It knows the configured folders by number,
//! and finds the program of a request below one of them itself. When the control socket ends, so
//! does the launcher, with all running programs. It knows neither workers nor HTTP.
#![forbid(unsafe_code)]

mod connection;
mod environment;
mod find;
mod guard;
mod launcher;
mod limits;
mod link;
mod programs;
mod run;
mod settings;

pub use guard::can_make_control_groups;
pub use settings::{GUARD_COMMAND, LauncherSettings};

use std::ffi::OsString;

use settings::LAUNCHER_COMMAND;

/// Runs the launcher or its guard, if `words` are the command line of one: the name of the program,
/// a hidden command, and the settings. Returns the exit status; `None` for any other command line.
pub fn run_if_launcher(words: &[OsString]) -> Option<u8> {
    match words.get(1)?.to_str()? {
        LAUNCHER_COMMAND => Some(launcher::run(&words[2..])),
        GUARD_COMMAND => Some(guard::run(&words[2..])),
        _ => None,
    }
}
