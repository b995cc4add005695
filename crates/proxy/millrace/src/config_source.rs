//! The source of the configuration, which a reload reads again.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use millrace_config::{self as config, Config, ConfigError, FILE_BYTES_MAX, RawConfig};

use crate::{certificates, congestion, preflight, users};

/// The source of a configuration.
pub(crate) enum ConfigSource {
    /// A configuration file.
    File {
        /// The path of the file.
        file: PathBuf,
        /// Options of the command line, which take precedence.
        overrides: RawConfig,
    },
    /// The options of a command line. A reload reads the files anew that they name.
    CommandLine(RawConfig),
}

impl ConfigSource {
    /// Returns the path of the configuration, if it is a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File { file, .. } => Some(file),
            Self::CommandLine(_) => None,
        }
    }

    /// Returns the options of the command line.
    pub(crate) fn options(&self) -> &RawConfig {
        match self {
            Self::File { overrides: options, .. } | Self::CommandLine(options) => options,
        }
    }

    /// Returns the name for messages.
    pub(crate) fn name(&self) -> String {
        self.file().map_or_else(|| "command line".to_owned(), |file| file.display().to_string())
    }

    /// Reads the configuration for a reload. Unlike [`ConfigSource::read`] it refuses a pipe, whose
    /// writer it would have to wait for.
    ///
    /// # Errors
    /// Those of [`ConfigSource::read`]; a path that is not a regular file.
    pub(crate) fn read_again(&self) -> Result<Config, ConfigError> {
        match self.file().map(fs::metadata) {
            Some(Ok(found)) if !found.is_file() => Err(self.unreadable("is not a regular file")),
            _ => {
                let config = self.read()?;
                preflight::check_folders(&config, self.options())?;
                Ok(config)
            }
        }
    }

    fn unreadable(&self, wrong: impl ToString) -> ConfigError {
        ConfigError::rule(self.name(), wrong.to_string(), "a readable file")
    }

    /// Builds the configuration, and reads the files that it names.
    ///
    /// # Errors
    /// The first error, on one line.
    pub(crate) fn read(&self) -> Result<Config, ConfigError> {
        match self {
            Self::File { file, overrides } => load(&self.read_file(file, overrides)?),
            Self::CommandLine(raw) => load(raw),
        }
    }

    /// Reads and parses the file.
    fn read_file(&self, file: &Path, overrides: &RawConfig) -> Result<RawConfig, ConfigError> {
        let mut bytes = Vec::new();
        // Reading one byte more than allowed detects a file that is too long, even an endless one.
        fs::File::open(file)
            .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| self.unreadable(error))?;
        let text = String::from_utf8(bytes).map_err(|_| self.unreadable("is not UTF-8"))?;
        config::parse_toml(&self.name(), &text, overrides)
    }
}

/// Builds a configuration, and reads the files that it names.
fn load(raw: &RawConfig) -> Result<Config, ConfigError> {
    let mut config = config::from_raw(raw)?;
    users::load(&mut config, raw)?;
    certificates::load(&mut config, raw)?;
    congestion::check(&config, raw)?;
    Ok(config)
}
