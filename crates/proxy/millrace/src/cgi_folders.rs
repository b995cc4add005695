//! Finds the folders of CGI programs for their guard, which runs in a process of its own.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::{cgi, command};

/// Returns the folders of the programs in the present configuration of a command line.
///
/// # Errors
/// Why the configuration cannot be read, on one line.
pub(crate) fn find(words: &[OsString]) -> Result<Vec<PathBuf>, String> {
    let config = command::parse_config(words.iter().cloned());
    config.map(|config| cgi::folders(&config)).map_err(|error| error.to_string())
}
