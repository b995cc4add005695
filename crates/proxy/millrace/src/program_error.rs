//! Why the program ends without having done what it was asked for.

use std::fmt;

use millrace_config::ConfigError;

/// A failure, told in one line.
#[derive(Debug)]
pub(crate) enum ProgramError {
    /// An option or file is wrong. Whoever wrote it can mend it.
    Config(ConfigError),
    /// The machine refuses what is needed: a port, a file, a thread. Another try may go well.
    System(String),
    /// A purge matched nothing that is stored.
    NothingPurged,
    /// It was asked to end at once while requests were under way.
    Interrupted,
}

impl ProgramError {
    /// What the machine refuses, and why.
    pub(crate) fn system(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::System(format!("{what}: {error}"))
    }

    /// The exit status.
    pub(crate) const fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::System(_) => 1,
            Self::NothingPurged => 3,
            // What shells report for a program that SIGINT ended: 128 and the signal's number.
            Self::Interrupted => 130,
        }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => write!(f, "{error}"),
            Self::System(text) => f.write_str(text),
            Self::NothingPurged => f.write_str("cache purge: nothing stored matched"),
            Self::Interrupted => f.write_str("ended at once; requests under way were cut off"),
        }
    }
}

impl std::error::Error for ProgramError {}

impl From<ConfigError> for ProgramError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}
