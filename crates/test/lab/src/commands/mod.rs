//! The commands of the program.

use std::fmt::Display;
use std::process::ExitCode;

pub(crate) mod eviction;
pub(crate) mod load;
pub(crate) mod profile;
pub(crate) mod wan;

/// Prints the error of a command, and returns the exit status.
fn fail(command: &str, status: u8, error: impl Display) -> ExitCode {
    eprintln!("millrace-lab: {command}: {error}");
    ExitCode::from(status)
}
