//! The source of the configuration, which a reload reads again.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use millrace_config::{self as config, Config, ConfigError, FILE_BYTES_MAX, RawConfig};

use crate::{certificates, congestion, preflight, users};

/// A configuration file and the command-line options that take precedence over it.
pub(crate) struct ConfigSource {
    /// The path of the file.
    pub(crate) file: PathBuf,
    /// Options of the command line.
    pub(crate) overrides: RawConfig,
}

impl ConfigSource {
    /// Returns the name of the file for messages.
    pub(crate) fn name(&self) -> String {
        self.file.display().to_string()
    }

    /// Reads the file for a reload. Unlike [`ConfigSource::read`] it refuses a pipe, whose writer
    /// it would have to wait for.
    ///
    /// # Errors
    /// Those of [`ConfigSource::read`]; a path that is not a regular file.
    pub(crate) fn read_again(&self) -> Result<Config, ConfigError> {
        match fs::metadata(&self.file) {
            Ok(found) if !found.is_file() => Err(self.unreadable("is not a regular file")),
            _ => {
                let config = self.read()?;
                preflight::check_folders(&config, &self.overrides)?;
                Ok(config)
            }
        }
    }

    fn unreadable(&self, wrong: impl ToString) -> ConfigError {
        ConfigError::rule(self.name(), wrong.to_string(), "a readable file")
    }

    /// Reads and parses the file.
    ///
    /// # Errors
    /// The first error, on one line.
    pub(crate) fn read(&self) -> Result<Config, ConfigError> {
        let name = self.name();
        let mut bytes = Vec::new();
        // Reading one byte more than allowed detects a file that is too long, even an endless one.
        fs::File::open(&self.file)
            .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| self.unreadable(error))?;
        let text = String::from_utf8(bytes).map_err(|_| self.unreadable("is not UTF-8"))?;
        let raw = config::parse_toml(&name, &text, &self.overrides)?;
        let mut config = config::from_raw(&raw)?;
        users::load(&mut config, &raw)?;
        certificates::load(&mut config, &raw)?;
        congestion::check(&config, &raw)?;
        Ok(config)
    }
}
