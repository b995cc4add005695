//! The error with which the program ends.

use std::fmt;

use millrace_config::ConfigError;

/// An error of the program. Its text is one line.
#[derive(Debug)]
pub(crate) enum ProgramError {
    /// An option or a file is wrong. The user can correct it.
    Config(ConfigError),
    /// The system refuses a resource such as a port, a file or a thread. A retry may succeed.
    System(String),
    /// A purge matched no stored response.
    NothingPurged,
    /// A second SIGINT ended the process while requests were in progress.
    Interrupted,
}

impl ProgramError {
    /// Creates the error of a refused resource.
    pub(crate) fn system(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::System(format!("{what}: {error}"))
    }

    /// Returns the exit status.
    pub(crate) const fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::System(_) => 1,
            Self::NothingPurged => 3,
            // 128 plus the number of SIGINT, as shells report it.
            Self::Interrupted => 130,
        }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => write!(f, "{error}"),
            Self::System(text) => f.write_str(text),
            Self::NothingPurged => f.write_str("cache purge: no stored response matched"),
            Self::Interrupted => f.write_str("interrupted; requests in progress were aborted"),
        }
    }
}

impl std::error::Error for ProgramError {}

impl From<ConfigError> for ProgramError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}
