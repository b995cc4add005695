//! The launcher of CGI programs (RFC 3875), and its guard, which millrace starts before it gives up
//! its rights. The launcher serves FastCGI on a Unix socket, and starts a program for each request.
//!
//! ```text
//!  millrace ── Unix socket, FastCGI ──> launcher ── environment, standard streams ──> program
//!           ── control socket ────────>          ── SIGKILL to its group ───────────>
//!           ── guard socket ──> guard ── starts launchers, removes control groups
//! ```
//!
//! The launcher accepts connections of millrace only. It knows the configured folders by number,
//! and finds the program of a request below one of them itself. When the control socket ends, so
//! does the launcher, with all running programs. It knows neither workers nor HTTP.
//!
//! The guard starts a launcher at the start, and another one for each reload that changes the
//! folders.
#![forbid(unsafe_code)]

mod connection;
mod control_group;
mod environment;
mod find;
mod guard;
mod guard_client;
mod guard_reply;
mod launcher;
mod limits;
mod link;
mod programs;
mod run;
mod settings;

pub use control_group::can_make_control_groups;
pub use guard::FindFolders;
pub use guard_client::Guard;
pub use guard_reply::StartedLauncher;
pub use settings::{LauncherSettings, Users};

use std::ffi::OsString;

use settings::{GUARD_COMMAND, LAUNCHER_COMMAND};

/// Runs the launcher or its guard, if `words` are the command line of one: the name of the program,
/// a hidden command, and the settings. The guard calls `find_folders` for each launcher but the
/// first. Returns the exit status; `None` for any other command line.
pub fn run_if_launcher(words: &[OsString], find_folders: FindFolders) -> Option<u8> {
    match words.get(1)?.to_str()? {
        LAUNCHER_COMMAND => Some(launcher::run(&words[2..])),
        GUARD_COMMAND => Some(guard::run(&words[2..], find_folders)),
        _ => None,
    }
}
